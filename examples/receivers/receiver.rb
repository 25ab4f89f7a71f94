# A complete receiver for Ruby 3.0 or newer. It verifies each delivery, stores it once, and responds before any work is done.
#
#   KEYS="whsec_…" INBOX=inbox PORT=9000 ruby receiver.rb
#
# It needs the gem webrick; any other web server works the same.
require "fileutils"
require "json"
require "openssl"
require "tempfile"
require "time"
require "webrick"

# One file for each delivery. Another process works on them. A file's name recognises repetitions: keep it for a day, even if empty.
INBOX = ENV.fetch("INBOX", "inbox")
MAX_BODY_BYTES = 256 * 1024 # Deliveries have at most 64 KB by default.
TOLERANCE = 300
READ_TIMEOUT = 10 # A client that sends nothing for so many seconds is disconnected.
# What precedes the 32 bytes of a public key in its DER encoding (RFC 8410).
ED25519_DER = ["302a300506032b6570032100"].pack("H*")

# Returns the version and the bytes of each key. Ends the process if a key is empty or cut off: others could sign with such a key.
def parse_keys(text)
  keys = text.split.map.with_index(1) do |key, number|
    kind, encoded = key.match(/\A(whsec|whpk)_([A-Za-z0-9+\/]+={0,2})\z/)&.captures
    bytes = encoded.to_s.unpack1("m")
    if kind == "whsec" && bytes.bytesize.between?(24, 64) then ["v1", bytes]
    elsif kind == "whpk" && bytes.bytesize == 32 then ["v1a", bytes]
    else abort("KEYS: key #{number} is neither whsec_ with the base64 of 24 to 64 bytes nor whpk_ with that of 32 bytes")
    end
  end
  keys.empty? ? abort("KEYS is empty: set it to the webhook's secret") : keys
end

# The webhook's secret, or its ed25519 public key (whpk_…). Several, separated by spaces, while one replaces another.
KEYS = parse_keys(ENV.fetch("KEYS", ""))

def matches?(version, key, signature, content)
  return OpenSSL.secure_compare(OpenSSL::HMAC.digest("SHA256", key, content), signature) if version == "v1"

  OpenSSL::PKey.read(ED25519_DER + key).verify(nil, signature, content)
rescue OpenSSL::PKey::PKeyError
  false
end

# Returns whether one of the signatures is genuine. `body` is the raw body.
def signed?(request, body)
  content = "#{request["webhook-id"]}.#{request["webhook-timestamp"]}.".b + body.b
  request["webhook-signature"].to_s.split(" ").any? do |entry|
    version, text = entry.split(",", 2)
    KEYS.any? { |of, key| of == version && matches?(version, key, text.to_s.unpack1("m"), content) }
  end
end

# Checks the time in the body, which is signed and differs at each attempt.
def recent?(body)
  (Time.now - Time.iso8601(JSON.parse(body)["timestamp"])).abs <= TOLERANCE
end

# Returns false if the delivery was stored before. The link appears when the file is complete, and only if it does not exist.
def store(id, body)
  Tempfile.create(".", INBOX, binmode: true) do |file|
    file.write(body)
    file.fsync
    File.link(file.path, File.join(INBOX, "#{id}.json"))
  end
  true
rescue Errno::EEXIST
  false
end

def receive(request)
  body = "".b
  request.body { |chunk| return [413, "too large"] if (body << chunk).bytesize > MAX_BODY_BYTES }

  id = request["webhook-id"].to_s
  return [401, "rejected"] unless id.match?(/\A[0-9a-f-]{36}\z/) && signed?(request, body) && recent?(body)

  [200, store(id, body) ? "accepted #{id}" : "duplicate #{id}"]
rescue SystemCallError => e
  # Not stored: the delivery is sent again later.
  [500, "failed #{e.message}"]
end

$stdout.sync = true
FileUtils.mkdir_p(INBOX)
server = WEBrick::HTTPServer.new(BindAddress: "127.0.0.1", Port: ENV.fetch("PORT", 9000).to_i, AccessLog: [],
                                 RequestTimeout: READ_TIMEOUT, Logger: WEBrick::Log.new($stderr, WEBrick::Log::WARN))
server.mount_proc("/") do |request, response|
  response.status, line = receive(request)
  puts line
end
%w[INT TERM].each { |signal| trap(signal) { server.shutdown } }
server.start
