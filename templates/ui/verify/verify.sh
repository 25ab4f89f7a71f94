#!/bin/sh
# Verifies a delivery on the command line: the unchanged body in body.json, and the value of X-Webhook-Signature.
# usage: SECRET=whsec_… ./verify.sh body.json SIGNATURE
# To test your receiver, sign a body of your own and send it:
#   curl -H "X-Webhook-Signature: $expected" -H 'Content-Type: application/json' --data-binary @body.json https://…
expected=$(openssl dgst -sha256 -hmac "$SECRET" -r "$1" | cut -d ' ' -f 1)
# Everyone can sign with an empty secret: a complete one has 38 characters or more.
[ "$expected" = "$2" ] && [ "${#SECRET}" -ge 38 ] && echo valid || { echo invalid; exit 1; }
