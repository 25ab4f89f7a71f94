//! The names of headers that custom headers must not have.

/// Names that Walhook sets, that describe the body, or that belong to the connection and not to the
/// request.
const NAMES: [&str; 18] = [
    "accept",
    "connection",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "max-forwards",
    "te",
    "traceparent",
    "tracestate",
    "baggage",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "date",
];
/// `accept-`: Walhook does not decode responses. `x-forwarded-`: receivers may read the client's
/// address there.
const PREFIXES: [&str; 6] = [
    "accept-",
    "content-",
    "proxy-",
    "webhook-",
    "x-forwarded-",
    "x-webhook-",
];

/// Returns whether a header has a reserved name, in any case.
pub fn is_reserved(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.contains(&&*name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_reserved_in_any_case() {
        for name in [
            "Host",
            "TE",
            "Content-Type",
            "content-length",
            "X-Webhook-Signature",
            "Webhook-Id",
            "TraceParent",
        ] {
            assert!(is_reserved(name), "{name}");
        }

        for name in [
            "Authorization",
            "Cookie",
            "X-Api-Key",
            "Webhook",
            "X-Host",
            "Contents",
            "Idempotency-Key",
        ] {
            assert!(!is_reserved(name), "{name}");
        }
    }
}
