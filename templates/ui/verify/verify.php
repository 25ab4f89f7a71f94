<?php

/** Whether a delivery is genuine and fresh. $body is the raw body: file_get_contents('php://input'). */
function verify(string $secret, string $body, string $signature, string $timestamp): bool
{
    // $signature is $_SERVER['HTTP_X_WEBHOOK_SIGNATURE'], $timestamp is $_SERVER['HTTP_X_WEBHOOK_TIMESTAMP'].
    $expected = hash_hmac('sha256', $body, $secret);
    $sent = strtotime($timestamp);
    return hash_equals($expected, $signature) && $sent !== false && abs(time() - $sent) <= 300;
}
