//! Parses `delivery.proxy`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::Delivery;

/// An HTTP proxy that opens tunnels (`CONNECT`).
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Scheme, host and port, without credentials.
    pub url: Url,
    /// The value of `Proxy-Authorization`.
    pub authorization: Option<SecretString>,
}

impl Delivery {
    /// Returns the proxy, if one is set. The error does not quote the value: in a malformed URL,
    /// the password may be anywhere.
    pub fn proxy(&self) -> Result<Option<Proxy>, String> {
        self.proxy
            .as_ref()
            .map(|text| parse(text.expose_secret()))
            .transpose()
    }
}

fn parse(text: &str) -> Result<Proxy, String> {
    let wrong = || {
        "delivery.proxy: expected a URL such as http://user:password@proxy.internal:3128".to_owned()
    };

    let mut url = Url::parse(text).map_err(|_| wrong())?;
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !is_bare {
        return Err(wrong());
    }

    let authorization = (!url.username().is_empty() || url.password().is_some()).then(|| {
        let user = decoded(url.username());
        let password = decoded(url.password().unwrap_or_default());
        format!(
            "Basic {}",
            STANDARD.encode([&user[..], b":", &password[..]].concat())
        )
        .into()
    });

    url.set_username("")
        .and_then(|()| url.set_password(None))
        .map_err(|()| wrong())?;
    Ok(Proxy { url, authorization })
}

fn decoded(part: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_removed_from_the_url() {
        let proxy = parse("http://walhook:p%40ss%3A@proxy.internal:3128").unwrap();
        assert_eq!(proxy.url.as_str(), "http://proxy.internal:3128/");
        assert_eq!(
            proxy.authorization.unwrap().expose_secret(),
            format!("Basic {}", STANDARD.encode("walhook:p@ss:"))
        );
        assert!(
            parse("https://proxy.internal")
                .unwrap()
                .authorization
                .is_none()
        );
    }

    #[test]
    fn a_malformed_proxy_is_rejected_without_quoting_it() {
        for wrong in [
            "socks5://hunter2@proxy",
            "hunter2",
            "http://:hunter2@",
            "http://proxy/hunter2",
            "http://proxy/?p=hunter2",
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(
                !error.contains("hunter2") && error.starts_with("delivery.proxy"),
                "{error}"
            );
        }
    }
}
