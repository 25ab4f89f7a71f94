//! Why a token of the platform is rejected: a cause that its sender may see, and a detail for the
//! server log.

use jsonwebtoken::errors::{Error, ErrorKind};

use crate::http::problem::Problem;
use crate::telemetry::Recurring;

/// A longer detail is cut in the log.
const MAX_DETAIL: usize = 200;

/// What is wrong with a token. Its sender may see this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Form,
    Key,
    Signature,
    Expired,
    Early,
    Issuer,
    Audience,
    User,
    Claim,
}

impl Cause {
    pub fn because(self, detail: impl Into<String>) -> Rejection {
        Rejection {
            cause: self,
            // It may repeat parts of the token, which is not trusted.
            detail: detail.into().chars().take(MAX_DETAIL).collect(),
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Cause::Form => "it is neither an API token nor a readable JSON Web Token",
            Cause::Key => "no key of the platform is for its `alg` and `kid`",
            Cause::Signature => "its signature is wrong",
            Cause::Expired => "it has expired (`exp`)",
            Cause::Early => "it is not valid yet (`nbf`, `iat`)",
            Cause::Issuer => "it has another issuer (`iss`)",
            Cause::Audience => "it is for another audience (`aud`)",
            Cause::User => "it names no user",
            Cause::Claim => "one of its claims is missing or malformed",
        }
    }
}

/// A token is rejected.
#[derive(Clone, Debug)]
pub struct Rejection {
    cause: Cause,
    /// For the operator: what was expected.
    detail: String,
}

impl Rejection {
    /// Logs the rejection at level `info`, unless the same cause keeps occurring, and otherwise at
    /// level `debug`: anybody can send such tokens.
    pub fn log(&self) {
        static SEEN: Recurring = Recurring::new();

        let cause = self.cause.as_str();
        let detail = &self.detail;

        if SEEN.must_log(cause) {
            tracing::info!(cause, detail, "a token of the platform is rejected");
        } else {
            tracing::debug!(cause, detail, "a token of the platform is rejected");
        }
    }
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Rejection {
        let cause = match error.kind() {
            ErrorKind::InvalidSignature => Cause::Signature,
            ErrorKind::ExpiredSignature => Cause::Expired,
            ErrorKind::ImmatureSignature => Cause::Early,
            ErrorKind::InvalidIssuer => Cause::Issuer,
            ErrorKind::MissingRequiredClaim(_) => Cause::Claim,
            _ => Cause::Form,
        };
        cause.because(error.to_string())
    }
}

impl From<Rejection> for Problem {
    fn from(rejection: Rejection) -> Problem {
        Problem::rejected_token(rejection.cause.as_str())
    }
}
