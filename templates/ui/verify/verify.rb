require "json"
require "openssl"
require "time"

# Whether a delivery is genuine and fresh. `body` is the raw body; with Rails: request.raw_post.
def verify(secret, body, headers)
  expected = OpenSSL::HMAC.hexdigest("SHA256", secret, body)
  return false unless OpenSSL.secure_compare(expected, headers["X-Webhook-Signature"].to_s)
  # The signed time, inside the body: headers are not signed.
  (Time.now - Time.iso8601(JSON.parse(body)["timestamp"])).abs <= 300
end
