//! Schemas that several operations of the OpenAPI document share.

use std::borrow::Cow;

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::log_export::ExportFormat;
use crate::domain::delivery::ErrorKind;
use crate::domain::event::EventKind;
use crate::manage::feed::DeliveryState;
use crate::manage::{
    Action, JOB_KINDS, JobState, OUTCOMES, RoundOrigin, Scope, SigningSecret, Via,
};

macro_rules! names {
    ($type:ident, $name:literal, $names:expr) => {
        /// One of a fixed set of names.
        pub struct $type;

        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .enum_values(Some($names))
                    .into()
            }
        }

        impl ToSchema for $type {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }
        }
    };
}

names!(
    EventName,
    "Event",
    EventKind::ALL.iter().map(|kind| kind.as_str())
);
names!(
    OutcomeName,
    "Outcome",
    OUTCOMES.iter().map(|outcome| outcome.as_str())
);
names!(
    ScopeName,
    "Scope",
    Scope::ALL.iter().map(|scope| scope.as_str())
);
names!(
    ActionName,
    "Action",
    Action::ALL.iter().map(|action| action.as_str())
);
names!(ViaName, "Via", Via::NAMES);
names!(
    DeliveryStateName,
    "DeliveryState",
    DeliveryState::ALL.iter().map(|state| state.as_str())
);
names!(
    RoundOriginName,
    "RoundOrigin",
    RoundOrigin::ALL.iter().map(|origin| origin.as_str())
);
names!(
    SigningSecretName,
    "SigningSecret",
    SigningSecret::ALL.iter().map(|secret| secret.as_str())
);
names!(LogFormatName, "LogFormat", ExportFormat::NAMES);
names!(JobKindName, "JobKind", JOB_KINDS);
names!(
    JobStateName,
    "JobState",
    JobState::ALL.iter().map(|state| state.as_str())
);
names!(
    ErrorKindName,
    "ErrorKind",
    ErrorKind::ALL.iter().map(|kind| kind.as_str())
);
