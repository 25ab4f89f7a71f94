//! What the delivery log says about responses that are not HTTP, or not complete.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::connections::{read_request, senders};
use crate::outbound::NAME;
use crate::support::{Answer, Authority, Bench, Receiver, TunnelProxy, attempt};

const CLOSED: &str = "the receiver closed the connection before it answered";
const TOO_LARGE: &str = "the head of the response has more than 64 KiB or more than 100 fields";

#[tokio::test]
async fn a_response_that_is_not_valid_has_a_plain_message() {
    let sender = Bench::new().await.sender();
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(101));

    let expected = [
        ("", CLOSED),
        ("HTTP/1.1 200 OK\r\nContent-Le", CLOSED),
        ("HTTP/1.1 102 Processing\r\n\r\n", CLOSED),
        (
            "220 mail.example ESMTP\r\n",
            "the response is not valid HTTP: invalid HTTP version parsed",
        ),
        (
            "HTTP/1.1 OK\r\n\r\n",
            "the response is not valid HTTP: invalid HTTP status-code parsed",
        ),
        (
            "HTTP/1.1 200 OK\r\nA field\r\n\r\n",
            "the response is not valid HTTP: invalid HTTP header parsed",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "the response is not valid HTTP: invalid content-length parsed",
        ),
        (&many, TOO_LARGE),
    ];
    for (response, message) in expected {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let response = response.to_owned();
        let receiver = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(read_request(&mut stream).await);
            stream.write_all(response.as_bytes()).await.unwrap();
        });

        let answer = attempt(&sender, &url).await.unwrap().answer;
        assert_eq!(
            answer.error().map(|kind| kind.as_str()),
            Some("connection_reset"),
            "{message}"
        );
        assert_eq!(answer.message(), Some(message));
        receiver.await.unwrap();
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_over_http_2_has_a_plain_message() {
    let authority = Authority::new();
    let proxy = TunnelProxy::start().await;
    let [(_, sender), _] = senders(&authority, &proxy);
    let receiver = Receiver::start_tls(authority.server(NAME, &["h2"])).await;

    for (bytes, is_allowed) in [(15 << 10, true), (17 << 10, false)] {
        receiver
            .answer(move |_| Answer::Full(200, vec![("x-field", "x".repeat(bytes))], Vec::new()));
        let answer = attempt(&sender, &receiver.url_at(NAME, "/"))
            .await
            .unwrap()
            .answer;
        let expected = "the head of the response has more than 16 KiB, or its HTTP/2 is not valid (PROTOCOL_ERROR)";
        assert_eq!(
            answer.message(),
            (!is_allowed).then_some(expected),
            "{bytes}"
        );
    }
}
