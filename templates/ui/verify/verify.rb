require "json"
require "openssl"
require "time"

# Returns whether a delivery is genuine and at most five minutes old. `body` is the raw body; with Rails: request.raw_post.
def verify(secret, body, headers)
  expected = OpenSSL::HMAC.hexdigest("SHA256", secret, body)
  return false unless OpenSSL.secure_compare(expected, headers["X-Webhook-Signature"].to_s)
  # Everyone can sign with an empty secret: a complete one has 38 characters or more.
  return false if secret.length < 38
  # The time in the body is signed; headers are not.
  (Time.now - Time.iso8601(JSON.parse(body)["timestamp"])).abs <= 300
end
