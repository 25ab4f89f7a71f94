//! Lists the values by which webhooks can filter.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::state::ApiState;
use crate::auth::Caller;
use crate::http::problem::Problem;
use crate::manage::FilterValue;

/// Values for the lists of a webhook's `filter`
#[derive(Default, Serialize, ToSchema)]
pub struct FilterValues {
    label_ids: Vec<LabelValue>,
    outlet_ids: Vec<OutletValue>,
    statuses: Vec<String>,
}

/// A label
#[derive(Serialize, ToSchema)]
struct LabelValue {
    id: i64,
    /// Null if it is not known, or if the label now belongs to another user
    #[schema(required = true)]
    name: Option<String>,
    /// The catalogue number of the label's newest release; null if its events have none
    #[schema(required = true)]
    newest_release: Option<String>,
}

/// An outlet
#[derive(Serialize, ToSchema)]
struct OutletValue {
    id: i64,
    /// Null if its events have none
    #[schema(required = true)]
    name: Option<String>,
}

impl From<Vec<FilterValue>> for FilterValues {
    fn from(values: Vec<FilterValue>) -> Self {
        let mut lists = FilterValues::default();

        for FilterValue {
            list,
            value,
            name,
            release,
        } in values
        {
            match (&*list, value.parse()) {
                ("label_ids", Ok(id)) => lists.label_ids.push(LabelValue {
                    id,
                    name,
                    newest_release: release,
                }),
                ("outlet_ids", Ok(id)) => lists.outlet_ids.push(OutletValue { id, name }),
                ("statuses", _) => lists.statuses.push(value),
                _ => {}
            }
        }

        lists
    }
}

/// List the values of filters
///
/// The labels and outlets of the account's newest 2,000 events, the latest first, with their names,
/// and the statuses that events can have. At most 500 of each list.
#[utoipa::path(
    get, path = "/webhooks/filter-values", tag = "webhooks", operation_id = "listFilterValues",
    responses((status = 200, description = "The values of each list", body = FilterValues))
)]
pub async fn list(
    State(state): State<ApiState>,
    Caller(user): Caller,
) -> Result<Json<FilterValues>, Problem> {
    let values = state.manage().filter_values(&user).await?;
    Ok(Json(values.into()))
}
