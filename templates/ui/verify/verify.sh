#!/bin/sh
# What was sent is verified on the command line: the body as it came, in body.json, and the signature of the header.
# usage: SECRET=whsec_… ./verify.sh body.json SIGNATURE
# To try your receiver, sign a body of your own and send it:
#   curl -H "X-Webhook-Signature: $expected" -H 'Content-Type: application/json' --data-binary @body.json https://…
expected=$(openssl dgst -sha256 -hmac "$SECRET" -r "$1" | cut -d ' ' -f 1)
[ "$expected" = "$2" ] && echo valid || { echo invalid; exit 1; }
