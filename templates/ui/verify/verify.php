<?php

/** Returns whether a delivery is genuine and at most five minutes old. $body is the raw body: file_get_contents('php://input'). */
function verify(string $secret, string $body, string $signature): bool
{
    // $signature is $_SERVER['HTTP_X_WEBHOOK_SIGNATURE'].
    if (!hash_equals(hash_hmac('sha256', $body, $secret), $signature)) {
        return false;
    }
    // Everyone can sign with an empty secret: a complete one has 38 characters or more.
    if (strlen($secret) < 38) {
        return false;
    }
    // The time in the body is signed; headers are not.
    $sent = strtotime(json_decode($body)->timestamp);
    return $sent !== false && abs(time() - $sent) <= 300;
}
