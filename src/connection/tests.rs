use super::*;
use crate::connection::pace::Pace;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

const MS: Duration = Duration::from_millis(20);
const BOUNDS: Bounds = Bounds {
    head: 1 << 10,
    head_timeout: Duration::from_secs(10),
    idle: MS,
    content: Pace { rate: 256, grace: MS },
    reading: Pace { rate: 256, grace: MS },
};

async fn pair() -> (TcpStream, Watched) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    (client, Watched::new(server, peer, BOUNDS))
}

#[tokio::test]
async fn a_head_waits_for_content_and_they_leave_together() {
    let (mut client, mut watched) = pair().await;
    watched.connection().hold_head(None);
    watched.write_all(b"head ").await.unwrap();
    assert_eq!(watched.held, b"head ");
    watched.write_all(b"content").await.unwrap();
    assert!(watched.held.is_empty());
    let mut got = [0; 12];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"head content");
}

#[tokio::test]
async fn the_first_byte_that_differs_decides() {
    for (sent, more, expected) in [("GET", "", false), ("PRI * X", "", false), ("PRI *", " HTTP", true)] {
        let (mut client, mut watched) = pair().await;
        client.write_all(sent.as_bytes()).await.unwrap();
        let whole = format!("{sent}{more}");
        let (begins, ()) = tokio::join!(watched.begins_with(b"PRI * HTTP"), async {
            client.write_all(more.as_bytes()).await.unwrap();
        });
        assert_eq!(begins.unwrap(), expected, "{whole}");
        let mut again = vec![0; whole.len()];
        watched.read_exact(&mut again).await.unwrap();
        assert_eq!(again, whole.as_bytes(), "all of it is read again");
    }
    let (client, mut watched) = pair().await;
    drop(client);
    assert!(!watched.begins_with(b"PRI").await.unwrap());
}

#[test]
fn a_date_takes_the_place_of_another() {
    let of = |head: &str, date: &str| {
        let mut head = head.as_bytes().to_vec();
        set_date(&mut head, date.as_bytes());
        String::from_utf8(head).unwrap()
    };
    let (old, new) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Tue, 01 Dec 2026 00:00:00 GMT");
    for (name, after) in [("Date", "x"), ("date", "date: y")] {
        let head = |date| format!("HTTP/1.1 200 OK\r\n{name}: {date}\r\na: b\r\n\r\n{after}");
        assert_eq!(of(&head(new), old), head(old));
        assert_eq!(of(&head(new), "0"), head(new), "of another length");
    }
    let without = "HTTP/1.1 200 OK\r\na: b\r\n\r\nx\r\nDate: Tue, 01 Dec 2026 00:00:00 GMT\r\n";
    assert_eq!(of(without, old), without, "content is not a head");
    assert_eq!(of("HTTP/1.1 200 OK\r\nDate: x", old), "HTTP/1.1 200 OK\r\nDate: x");
}

#[tokio::test]
async fn a_head_without_content_leaves_when_we_wait_for_the_client() {
    let (mut client, mut watched) = pair().await;
    watched.connection().hold_head(None);
    watched.write_all(b"head").await.unwrap();
    let mut got = [0; 4];
    let mut idle = [0; 1];
    tokio::select! {
        _ = watched.read(&mut idle) => panic!("nothing was sent"),
        read = client.read_exact(&mut got) => { read.unwrap(); }
    }
    assert_eq!(&got, b"head");
}

#[tokio::test]
async fn a_deadline_is_an_error_that_says_which_one() {
    let (_client, mut watched) = pair().await;
    let connection = watched.connection().clone();
    connection.head_here(BOUNDS);
    connection.enter(Phase::FirstByte, MS);
    let error = watched.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(connection.expired(), Some(Phase::FirstByte));
    assert!(!connection.gone(), "the client is still there and can be told");
    connection.head_here(BOUNDS);
    assert_eq!(connection.expired(), None);
}

#[tokio::test]
async fn bytes_of_a_head_do_not_push_its_deadline() {
    let (mut client, mut watched) = pair().await;
    watched.connection().exchange_over();
    client.write_all(b"G").await.unwrap();
    watched.read_exact(&mut [0; 1]).await.unwrap();
    let first = watched.connection().deadline().unwrap();
    client.write_all(b"E").await.unwrap();
    watched.read_exact(&mut [0; 1]).await.unwrap();
    assert_eq!(watched.connection().deadline().unwrap(), first);
    assert_eq!(first.1, Phase::Head);
    drop(client);
    assert_eq!(watched.read(&mut [0; 1]).await.unwrap(), 0);
    assert!(watched.connection().gone());
}

#[tokio::test]
async fn content_has_a_pace_while_it_is_awaited() {
    let (mut client, mut watched) = pair().await;
    let connection = watched.connection().clone();
    connection.head_here(BOUNDS);
    connection.content_offered();
    assert_eq!(watched.next_deadline(), None, "its client waits to be told");
    connection.content_welcome();
    assert_eq!(watched.next_deadline().map(|(_, phase)| phase), Some(Phase::Content));
    assert_eq!(watched.read(&mut [0; 1]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!((connection.expired(), connection.cut()), (Some(Phase::Content), Some(Cut::SlowContent)));
    connection.content_over();
    assert_eq!(watched.next_deadline(), None);
    connection.head_here(BOUNDS);
    connection.content_welcome();
    assert_eq!(watched.next_deadline(), None, "nothing was offered");
    connection.content_offered();
    client.write_all(b"unasked").await.unwrap();
    watched.read_exact(&mut [0; 7]).await.unwrap();
    assert!(watched.next_deadline().is_some());
}

#[tokio::test]
async fn a_head_that_grows_too_long_is_read_no_further() {
    let (mut client, mut watched) = pair().await;
    client.write_all(&[b'a'; 3000]).await.unwrap();
    let mut read = 0;
    let error = loop {
        match watched.read(&mut [0; 512]).await {
            Ok(bytes) => read += bytes,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), read), (io::ErrorKind::InvalidData, 1536));
    assert_eq!(watched.connection().cut(), Some(Cut::LongHead));
    let closed = tokio::spawn(async move { Shutdown::shutdown(&mut watched).await });
    let mut told = Vec::new();
    client.read_to_end(&mut told).await.unwrap();
    assert_eq!(told, TOO_LONG);
    let (head, text) = std::str::from_utf8(TOO_LONG).unwrap().split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}\r\n", text.len())), "{head}");
    drop(client);
    closed.await.unwrap();
}

#[tokio::test]
async fn an_answer_is_not_lost_with_content_that_nobody_read() {
    let (mut client, mut watched) = pair().await;
    let connection = watched.connection().clone();
    connection.head_here(BOUNDS);
    connection.await_content();
    client.write_all(&[b'a'; 100_000]).await.unwrap();
    watched.write_all(b"too much").await.unwrap();
    connection.exchange_over();
    let closed = tokio::spawn(async move { Shutdown::shutdown(&mut watched).await });
    let mut told = Vec::new();
    client.read_to_end(&mut told).await.unwrap();
    assert_eq!(told, b"too much", "a reset would be an error");
    drop(client);
    closed.await.unwrap();
}

#[tokio::test]
async fn an_idle_connection_ends_and_is_blamed_for_nothing() {
    let (_client, mut watched) = pair().await;
    let connection = watched.connection().clone();
    connection.head_here(BOUNDS);
    connection.exchange_over();
    assert_eq!(watched.read(&mut [0; 1]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!((connection.expired(), connection.cut()), (Some(Phase::Idle), None));
}
