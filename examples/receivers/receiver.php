<?php

// A complete receiver for PHP 7.4 or newer, without dependencies. It verifies each delivery, stores it once, and responds before any work
// is done.
//
//   KEYS="whsec_…" INBOX=inbox php -S 127.0.0.1:9000 receiver.php
//
// PHP's own server has no timeout and reads every body as a whole. In production, run this file behind nginx or Apache, which limit both.

// One file for each delivery. Another process works on them. A file's name recognises repetitions: keep it for a day, even if empty.
$inbox = getenv('INBOX') ?: 'inbox';
const MAX_BODY_BYTES = 256 * 1024; // Deliveries have at most 64 KB by default.
const TOLERANCE = 300;

/**
 * Returns the version and the bytes of each key. Throws if a key is empty or cut off: others could sign with such a key.
 *
 * $text is the webhook's secret, or its ed25519 public key (whpk_…). Several, separated by spaces, while one replaces another.
 */
function parse_keys(string $text): array
{
    $keys = [];
    foreach (preg_split('/\s+/', $text, -1, PREG_SPLIT_NO_EMPTY) as $index => $key) {
        [$kind, $encoded] = explode('_', $key, 2) + ['', ''];
        $bytes = (string) base64_decode($encoded, true);
        $length = strlen($bytes);
        if ($kind === 'whsec' && $length >= 24 && $length <= 64) {
            $keys[] = ['v1', $bytes];
        } elseif ($kind === 'whpk' && $length === 32) {
            $keys[] = ['v1a', $bytes];
        } else {
            $number = $index + 1;
            throw new Exception("KEYS: key $number is neither whsec_ with the base64 of 24 to 64 bytes nor whpk_ with that of 32 bytes");
        }
    }
    if ($keys === []) {
        throw new Exception("KEYS is empty: set it to the webhook's secret");
    }
    return $keys;
}

function matches(string $version, string $key, string $signature, string $content): bool
{
    if ($version === 'v1') {
        return hash_equals(hash_hmac('sha256', $content, $key, true), $signature);
    }
    return strlen($signature) === SODIUM_CRYPTO_SIGN_BYTES && sodium_crypto_sign_verify_detached($signature, $content, $key);
}

/** Returns whether one of the signatures is genuine. $body is the raw body. */
function is_signed(array $keys, string $body): bool
{
    $content = ($_SERVER['HTTP_WEBHOOK_ID'] ?? '') . '.' . ($_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? '') . '.' . $body;
    foreach (explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? '') as $entry) {
        [$version, $text] = explode(',', $entry, 2) + ['', ''];
        foreach ($keys as [$of, $key]) {
            if ($of === $version && matches($version, $key, base64_decode($text), $content)) {
                return true;
            }
        }
    }
    return false;
}

/** Checks the time in the body, which is signed and differs at each attempt. */
function is_recent(string $body): bool
{
    $sent = strtotime(json_decode($body)->timestamp);
    return $sent !== false && abs(time() - $sent) <= TOLERANCE;
}

/** Returns false if the delivery was stored before. The link appears when the file is complete, and only if it does not exist. */
function store(string $inbox, string $id, string $body): bool
{
    $file = tempnam($inbox, '.');
    if ($file === false || file_put_contents($file, $body) !== strlen($body)) {
        throw new RuntimeException("cannot write to $inbox");
    }
    try {
        if (@link($file, "$inbox/$id.json")) {
            return true;
        }
        if (!file_exists("$inbox/$id.json")) {
            throw new RuntimeException("cannot write to $inbox");
        }
        return false;
    } finally {
        unlink($file);
    }
}

function receive(string $inbox): array
{
    $keys = parse_keys(getenv('KEYS') ?: '');
    $body = file_get_contents('php://input', false, null, 0, MAX_BODY_BYTES + 1);
    if (strlen($body) > MAX_BODY_BYTES) {
        return [413, 'too large'];
    }
    $id = $_SERVER['HTTP_WEBHOOK_ID'] ?? '';
    if (!preg_match('/^[0-9a-f-]{36}$/D', $id) || !is_signed($keys, $body) || !is_recent($body)) {
        return [401, 'rejected'];
    }
    return [200, (store($inbox, $id, $body) ? 'accepted ' : 'duplicate ') . $id];
}

is_dir($inbox) || mkdir($inbox, 0755, true);
try {
    [$status, $line] = receive($inbox);
} catch (Throwable $error) {
    // Not stored: the delivery is sent again later.
    [$status, $line] = [500, 'failed ' . $error->getMessage()];
}
http_response_code($status);
file_put_contents('php://stdout', "$line\n");
