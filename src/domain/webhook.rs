//! A webhook as the dispatcher sees it.

use secrecy::SecretString;
use uuid::Uuid;

/// Where to deliver and with which secret to sign: read afresh shortly before each attempt, so that an edit, a toggle or a
/// new secret holds for deliveries already pending.
#[derive(Debug)]
pub struct Target {
    pub webhook: Uuid,
    pub url: String,
    pub active: bool,
    pub secret: SecretString,
}
