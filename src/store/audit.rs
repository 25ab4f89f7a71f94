//! The audit log: who changed what, and when. Each record is inserted in the transaction of the
//! change.

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use postgres_types::ToSql;
use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

use super::statement::{Params, Statements, from_row};
use super::{Result, Store, lowest_id_at, start_of_day};
pub use crate::domain::audit::Action;
use crate::domain::event::UserId;
use crate::sql::store as sql;

/// The rows of a user and a day: more changes than people make, and 300 kB. Further changes of one
/// kind are counted in one row.
const MAX_DAILY_ROWS: i64 = 1_000;

/// The user that makes a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    pub user: UserId,
    pub via: Via,
}

/// How the user was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// An API token, by its id.
    Token(Uuid),
    /// A token of the platform.
    Jwt,
    /// The web UI, with the API token that the user signed in with.
    Session(Option<Uuid>),
    CommandLine,
    /// Walhook itself, without a user.
    Automatic,
}

impl Via {
    /// All names.
    pub const NAMES: [&'static str; 5] = ["token", "jwt", "session", "command_line", "automatic"];

    const fn as_str(self) -> &'static str {
        let [token, jwt, session, command_line, automatic] = Via::NAMES;

        match self {
            Via::Token(_) => token,
            Via::Jwt => jwt,
            Via::Session(_) => session,
            Via::CommandLine => command_line,
            Via::Automatic => automatic,
        }
    }
}

/// What a user's audit log shows of a change.
#[derive(Clone, Debug)]
pub struct Record {
    pub id: Uuid,
    pub at: Timestamp,
    pub via: String,
    /// The API token of the request. Its name is None if it was removed.
    pub token: Option<Uuid>,
    pub token_name: Option<String>,
    pub action: String,
    /// The webhook or token that was changed. Its name is None if it was removed.
    pub subject: Option<Uuid>,
    pub subject_name: Option<String>,
    pub changed: Vec<String>,
    /// How many changes the record stands for, and when the last of several was made.
    pub count: u64,
    pub last_at: Option<Timestamp>,
}

from_row!(Record {
    id,
    at,
    via,
    token = "token_id",
    token_name,
    action,
    subject,
    subject_name,
    changed,
    count,
    last_at
});

/// Which records to list.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordFilter {
    /// Only those of this webhook or token.
    pub subject: Option<Uuid>,
    pub action: Option<Action>,
}

/// Returns the user's records with ids less than `before`, newest first.
pub async fn list(
    store: &Store,
    user: &UserId,
    filter: RecordFilter,
    before: Uuid,
    limit: usize,
) -> Result<Vec<Record>> {
    let action = filter.action.map(Action::as_str);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let params: &Params<'_> = &[user, &before, &filter.subject, &action, &limit];
    store.fetch_all(sql::audit::LIST, params).await
}

/// Records that `actor` changed the webhook, token or session `subject`; `changed` names the
/// fields.
pub async fn record(
    transaction: &Transaction<'_>,
    actor: &Actor,
    action: Action,
    subject: Uuid,
    changed: &[&str],
) -> Result<()> {
    let token = match actor.via {
        Via::Token(token) => Some(token),
        Via::Session(token) => token,
        Via::Jwt | Via::CommandLine | Via::Automatic => None,
    };

    let via = actor.via.as_str();

    // Operators and Walhook itself are not limited: one row is shared with no transaction of
    // another user.
    let limit = match actor.via {
        Via::CommandLine | Via::Automatic => i64::MAX,
        Via::Token(_) | Via::Jwt | Via::Session(_) => MAX_DAILY_ROWS,
    };

    let now = Timestamp::now().as_millisecond();
    let id = Uuid::now_v7();
    let action = action.as_str();
    let today = lowest_id_at(start_of_day(now));
    let further = further_changes_id(&actor.user, action, now);

    let params: [&(dyn ToSql + Sync); 10] = [
        &id,
        &actor.user,
        &via,
        &token,
        &action,
        &subject,
        &changed,
        &today,
        &limit,
        &further,
    ];

    transaction.run(sql::audit::INSERT, &params).await.map(drop)
}

/// The id of the row that counts further changes of one kind, of a user and a day: its time is the
/// start of the day.
fn further_changes_id(user: &UserId, action: &str, now: i64) -> Uuid {
    let digest = Sha256::new()
        .chain_update(action)
        .chain_update([0])
        .chain_update(&*user.0)
        .finalize();
    let random = digest.first_chunk().expect("a digest has 32 bytes");
    Builder::from_unix_timestamp_millis(start_of_day(now).unsigned_abs(), random).into_uuid()
}

/// Removes records that are older than `retention_days`, and returns how many they were.
pub async fn remove_old(store: &Store, retention_days: u32) -> Result<u64> {
    store
        .run(
            sql::audit::REMOVE,
            &[&i32::try_from(retention_days).unwrap_or(i32::MAX)],
        )
        .await
}
