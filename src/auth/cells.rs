//! One address for the API and the web UI of several cells: the cell of its user answers a request.
//! What it is authenticated with carries the shard, or the user: no store is asked which cell that
//! is. The cell's own router then authenticates it as any other.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use parking_lot::RwLock;
use tower::ServiceExt;

use super::session::any_session_id;
use super::{bearer_token, jwt};
use crate::config::{Config, MAX_BODY_BYTES};
use crate::domain::cell::{Shard, Shards};
use crate::http::problem::Problem;
use crate::http::{Pairs, read_body};
use crate::manage::tokens;

/// The page whose form or query has what a user signs in with.
const SIGN_IN: &str = "/ui/login";

/// The routers of cells. Clones share them.
#[derive(Clone)]
pub struct CellRouters {
    routers: Arc<RwLock<Vec<CellRouter>>>,
    /// The claim of the platform's tokens that names the user.
    user_claim: Arc<str>,
}

#[derive(Clone)]
struct CellRouter {
    name: String,
    shards: Shards,
    router: Router,
}

impl CellRouters {
    pub fn new(config: &Config) -> CellRouters {
        let jwt = config.auth.jwt.as_ref();
        CellRouters {
            routers: Arc::default(),
            user_claim: jwt.map_or_else(Arc::default, |jwt| jwt.user_claim.as_str().into()),
        }
    }

    /// Serves the users of these shards by a router from now on.
    pub fn set(&self, name: &str, shards: Shards, router: Router) {
        let mut routers = self.routers.write();
        routers.retain(|cell| cell.name != name);
        routers.push(CellRouter {
            name: name.to_owned(),
            shards,
            router,
        });
    }

    /// Serves no user of a cell from now on.
    pub fn remove(&self, name: &str) {
        self.routers.write().retain(|cell| cell.name != name);
    }

    /// Returns the router of all cells.
    pub fn router(self) -> Router {
        Router::new().fallback(route).with_state(self)
    }

    /// Returns the router of the user's cell. Requests without a user need no store: the router of
    /// any cell answers them.
    fn find(&self, shard: Option<Shard>) -> Option<Router> {
        let routers = self.routers.read();
        let found = routers
            .iter()
            .find(|cell| shard.is_none_or(|shard| cell.shards.contains(shard)));
        found.map(|cell| cell.router.clone())
    }

    fn shard_of(&self, headers: &HeaderMap, fields: Option<&Pairs>) -> Option<Shard> {
        let field = |name| fields.and_then(|fields| fields.first(name));
        let given = ["link", "jwt", "token"]
            .into_iter()
            .find_map(|name| field(name).filter(|text| !text.is_empty()));

        given
            .or_else(|| bearer_token(headers))
            .map(str::trim)
            .or_else(|| any_session_id(headers))
            .and_then(|credential| {
                let user = || jwt::claimed_user(credential, &self.user_claim);
                user()
                    .as_ref()
                    .map(Shard::of)
                    .or_else(|| tokens::shard(credential))
            })
    }
}

async fn route(State(cells): State<CellRouters>, request: Request) -> Response {
    match read_fields(request).await {
        Ok((request, fields)) => {
            let shard = cells.shard_of(request.headers(), fields.as_ref());
            let Some(router) = cells.find(shard) else {
                return Problem::unavailable().into_response();
            };

            let Ok(response) = router.oneshot(request).await;
            response
        }
        Err(problem) => problem.into_response(),
    }
}

/// Reads what a user signs in with, and returns the request as it was.
async fn read_fields(request: Request) -> Result<(Request, Option<Pairs>), Problem> {
    if request.uri().path() != SIGN_IN {
        return Ok((request, None));
    }

    if request.method() != Method::POST {
        let query = request.uri().query().unwrap_or_default();
        let fields = Pairs::parse(query.as_bytes())?;
        return Ok((request, Some(fields)));
    }

    let (parts, body) = request.into_parts();
    let body = read_body(body, MAX_BODY_BYTES).await?;
    let fields = Pairs::parse(&body)?;
    Ok((Request::from_parts(parts, Body::from(body)), Some(fields)))
}
