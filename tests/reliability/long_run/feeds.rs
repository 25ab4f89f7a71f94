//! Readers of the feed: one by pages, each from the next replica, and two by a stream. All continue
//! where they were when a replica ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::replicas::{Caller, Serving};
use crate::support::eventually;
use crate::support::sse::Stream;

/// How long a stream may be silent before another replica is asked. Keep-alives come every 15
/// seconds.
const SILENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);

pub struct Reader {
    read: Arc<Mutex<Vec<Uuid>>>,
    /// How often the reader connected again after an error.
    pub resumed: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

impl Reader {
    pub fn pages(caller: Caller) -> Reader {
        Reader::start(|read, resumed| async move {
            let mut after = "earliest".to_owned();
            let mut turn = 0_usize;

            loop {
                turn += 1;
                let Some(api) = caller.api(turn, Serving::Any) else {
                    continue;
                };

                let page = api
                    .try_send(
                        "GET",
                        &format!("/events?limit=100&wait=2&after={after}"),
                        &[],
                        None,
                    )
                    .await;
                match page {
                    Ok(page) if page.status == 200 => {
                        let page = page.json();
                        let ids = page["data"].as_array().expect("a page").iter().map(id);
                        read.lock()
                            .expect("nothing panics with this lock")
                            .extend(ids);
                        after = page["next_cursor"].as_str().expect("a cursor").to_owned();
                    }
                    _ => {
                        resumed.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        })
    }

    pub fn stream(caller: Caller, serving: Serving) -> Reader {
        Reader::start(move |read, resumed| async move {
            let mut last_id = None::<String>;
            let mut turn = 0_usize;

            loop {
                turn += 1;
                resumed.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(PAUSE).await;

                let Some(api) = caller.api(turn, serving) else {
                    continue;
                };

                let opened = Stream::try_open(&api, "?after=earliest", last_id.as_deref()).await;
                let Some(mut stream) = opened else { continue };
                while let Ok(Ok(Some(block))) =
                    tokio::time::timeout(SILENCE, stream.try_next()).await
                {
                    if block.data.is_some() {
                        read.lock()
                            .expect("nothing panics with this lock")
                            .push(id(&block.json()));
                    }

                    last_id.clone_from(&stream.last_id);
                }
            }
        })
    }

    fn start<F: Future<Output = ()> + Send + 'static>(
        read: impl FnOnce(Arc<Mutex<Vec<Uuid>>>, Arc<AtomicUsize>) -> F,
    ) -> Reader {
        let ids = Arc::<Mutex<Vec<Uuid>>>::default();
        let resumed = Arc::<AtomicUsize>::default();
        let task = AbortOnDropHandle::new(tokio::spawn(read(ids.clone(), resumed.clone())));

        Reader {
            read: ids,
            resumed,
            _task: task,
        }
    }

    /// Waits until as many events as expected were read, and asserts that they are the expected
    /// ones in their order.
    pub async fn assert_read(&self, what: &str, expected: &[Uuid]) {
        eventually(&format!("all events in the {what}"), async || {
            (self
                .read
                .lock()
                .expect("nothing panics with this lock")
                .len()
                >= expected.len())
            .then_some(())
        })
        .await;

        let read = self
            .read
            .lock()
            .expect("nothing panics with this lock")
            .clone();
        let differs = read
            .iter()
            .zip(expected)
            .position(|(read, expected)| read != expected);
        assert!(
            read.len() == expected.len() && differs.is_none(),
            "the {what} has {} events instead of {}, and differs at {differs:?}",
            read.len(),
            expected.len()
        );
    }
}

fn id(event: &serde_json::Value) -> Uuid {
    event["id"]
        .as_str()
        .expect("an id")
        .parse()
        .expect("a UUID")
}
