// hmac = "0.13", sha2 = "0.11", hex = "0.4", jiff = "0.2", serde_json = "1"
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Returns whether a delivery is genuine and at most five minutes old. `body` is the raw body; with axum: `Bytes`.
pub fn verify(secret: &str, body: &[u8], signature: &str) -> bool {
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes())
        .expect("a key of any length")
        .chain_update(body);
    let genuine = hex::decode(signature).is_ok_and(|given| mac.verify_slice(&given).is_ok());
    // The time in the body is signed; headers are not.
    let envelope = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
    let sent = envelope["timestamp"]
        .as_str()
        .and_then(|text| text.parse::<jiff::Timestamp>().ok());
    // Everyone can sign with an empty secret: a complete one has 38 characters or more.
    let is_secret = secret.len() >= 38;
    genuine
        && is_secret
        && sent.is_some_and(|sent| {
            (jiff::Timestamp::now().as_second() - sent.as_second()).abs() <= 300
        })
}
