//! The state file: the position in the feed, and the webhook's id and secret, which stay the same
//! over restarts.
//!
//! The feed's cursors are behind whole pages. Events of the current page that were forwarded are
//! therefore listed by their ids. The file is replaced after each event: a process that is killed
//! between sending an event and replacing the file sends this one event again after its restart,
//! and no other.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;
use uuid::Uuid;

use crate::vault::new_webhook_secret;

/// The position after the last event: only events that occur from now on.
pub const LATEST: &str = "latest";
/// The position before the first event that is kept.
pub const EARLIEST: &str = "earliest";

/// Where the listener is in the feed, and as which webhook it sends.
pub struct ListenState {
    content: Content,
    /// The position while there is no cursor.
    start: &'static str,
    file: Option<StateFile>,
}

#[derive(Serialize, Deserialize)]
struct Content {
    /// The API that the cursor belongs to.
    api: String,
    webhook_id: Uuid,
    /// The generated secret. None while a given one is used.
    secret: Option<String>,
    /// Where the current page begins. None until the API has answered.
    cursor: Option<String>,
    /// Events of the current page that were forwarded or skipped.
    forwarded: Vec<Uuid>,
    /// The number of the last event that was forwarded: `X-Webhook-Sequence`.
    sequence: i64,
}

impl ListenState {
    /// Reads the state from `path`, or creates it. `from` replaces the position in the file. `start`
    /// is the position if there is neither.
    pub fn open(
        path: Option<&Path>,
        api: &Url,
        from: Option<String>,
        start: &'static str,
    ) -> anyhow::Result<ListenState> {
        let (file, found) = match path {
            Some(path) => StateFile::open(path).map(|(file, found)| (Some(file), found))?,
            None => (None, None),
        };

        let mut content = found.unwrap_or_else(|| Content {
            api: api.to_string(),
            webhook_id: Uuid::now_v7(),
            secret: None,
            cursor: None,
            forwarded: Vec::new(),
            sequence: 0,
        });

        let start = match from.as_deref() {
            Some(LATEST) => LATEST,
            _ => start,
        };

        match from {
            // `latest` must not be kept: after a restart it would be another position.
            Some(from) => {
                content.cursor = Some(from).filter(|from| from != LATEST);
                content.forwarded.clear();
                content.api = api.to_string();
            }
            None if content.api != api.as_str() => bail!(
                "the state file holds a position in the feed of {}, not of {api}: use another file, or set --from to replace the position",
                content.api
            ),
            None => {}
        }

        let mut state = ListenState {
            content,
            start,
            file,
        };

        // Shows at the start whether the file can be written.
        state.save()?;
        Ok(state)
    }

    pub fn webhook(&self) -> Uuid {
        self.content.webhook_id
    }

    /// Returns the secret, which is generated if there is none.
    pub fn secret(&mut self) -> anyhow::Result<SecretString> {
        if self.content.secret.is_none() {
            self.content.secret = Some(new_webhook_secret().expose_secret().to_owned());
            self.save()?;
        }

        Ok(self.content.secret.clone().unwrap_or_default().into())
    }

    /// Returns the position that the next page follows.
    pub fn after(&self) -> &str {
        self.content.cursor.as_deref().unwrap_or(self.start)
    }

    pub fn is_forwarded(&self, event: Uuid) -> bool {
        self.content.forwarded.contains(&event)
    }

    /// Returns the number of the last event that was forwarded.
    pub fn sequence(&self) -> i64 {
        self.content.sequence
    }

    /// Records that an event of the current page was forwarded, under the next number.
    pub fn record_forwarded(&mut self, event: Uuid) -> anyhow::Result<()> {
        self.content.sequence += 1;
        self.record_skipped(event)
    }

    /// Records that an event of the current page must not be forwarded.
    pub fn record_skipped(&mut self, event: Uuid) -> anyhow::Result<()> {
        self.content.forwarded.push(event);
        self.save()
    }

    /// Records that the current page is finished.
    pub fn finish_page(&mut self, next_cursor: String) -> anyhow::Result<()> {
        if self.content.cursor.as_ref() == Some(&next_cursor) && self.content.forwarded.is_empty() {
            return Ok(());
        }

        self.content.cursor = Some(next_cursor);
        self.content.forwarded.clear();

        self.save()
    }

    fn save(&mut self) -> anyhow::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };

        let mut text = serde_json::to_string_pretty(&self.content)?;
        text.push('\n');

        file.replace(&text)
            .with_context(|| format!("cannot write the state file {}", file.path.display()))
    }
}

struct StateFile {
    path: PathBuf,
    /// The present file, locked, so that two processes do not use one position. None until it is
    /// first written.
    lock: Option<File>,
}

impl StateFile {
    fn open(path: &Path) -> anyhow::Result<(StateFile, Option<Content>)> {
        let shown = path.display();
        let mut file = StateFile {
            path: path.to_owned(),
            lock: None,
        };

        let mut opened = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((file, None)),
            opened => opened.with_context(|| format!("cannot read the state file {shown}"))?,
        };

        // A file system without locks does not prevent listening.
        if let Err(TryLockError::WouldBlock) = opened.try_lock() {
            bail!("the state file {shown} is in use by another `walhook listen`");
        }

        let mut text = String::new();
        opened
            .read_to_string(&mut text)
            .with_context(|| format!("cannot read the state file {shown}"))?;

        let corrupt = || {
            format!(
                "{shown} is not a state file of `walhook listen`, or is damaged: delete it to start afresh"
            )
        };

        let content: Content = serde_json::from_str(&text).with_context(corrupt)?;
        file.lock = Some(opened);
        Ok((file, Some(content)))
    }

    /// Replaces the file: after a crash, it has either the old or the new content.
    fn replace(&mut self, text: &str) -> io::Result<()> {
        let mut name = self.path.clone().into_os_string();
        name.push(".tmp");

        // Left behind by a process that was killed, perhaps with other permissions.
        let _ = fs::remove_file(&name);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&name)?;

        file.write_all(text.as_bytes())?;
        file.sync_all()?;

        let _ = file.try_lock();
        fs::rename(&name, &self.path)?;
        self.lock = Some(file);

        let directory = self
            .path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn api(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn position_id_and_secret_survive_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let open = |from: Option<&str>| {
            ListenState::open(
                Some(&path),
                &api("http://a/"),
                from.map(str::to_owned),
                LATEST,
            )
        };

        let mut state = open(None).unwrap();
        assert_eq!(state.after(), "latest");

        let webhook = state.webhook();
        let secret = state.secret().unwrap();

        state.finish_page("c1".into()).unwrap();
        state.record_forwarded(Uuid::from_u128(7)).unwrap();
        assert!(open(None).is_err_and(|error| error.to_string().contains("in use")));
        drop(state);

        let mut state = open(None).unwrap();
        assert_eq!(
            (state.after(), state.webhook(), state.sequence()),
            ("c1", webhook, 1)
        );
        assert_eq!(
            state.secret().unwrap().expose_secret(),
            secret.expose_secret()
        );
        assert!(state.is_forwarded(Uuid::from_u128(7)) && !state.is_forwarded(Uuid::from_u128(8)));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        drop(state);

        let state = open(Some("earliest")).unwrap();
        assert_eq!((state.after(), state.webhook()), ("earliest", webhook));
        assert!(!state.is_forwarded(Uuid::from_u128(7)));
    }

    #[test]
    fn a_position_is_used_only_for_the_api_that_it_belongs_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");

        ListenState::open(Some(&path), &api("http://a/"), None, LATEST)
            .unwrap()
            .finish_page("c1".into())
            .unwrap();
        let error = ListenState::open(Some(&path), &api("http://b/"), None, LATEST)
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("http://a/") && error.contains("--from"),
            "{error}"
        );
        assert_eq!(
            ListenState::open(
                Some(&path),
                &api("http://b/"),
                Some("latest".into()),
                LATEST,
            )
            .unwrap()
            .after(),
            "latest"
        );
    }

    #[test]
    fn a_damaged_file_is_rejected_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");

        for text in ["", "{", r#"{"version":1}"#, "[]"] {
            fs::write(&path, text).unwrap();
            let error = ListenState::open(Some(&path), &api("http://a/"), None, LATEST)
                .map(drop)
                .unwrap_err()
                .to_string();
            assert!(error.contains("is not a state file"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
