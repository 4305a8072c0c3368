//! A client for `porteiro.v1.LimiterService`: permits that give themselves back.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use porteiro::client::{Ask, Client};
//!
//! let client = Client::connect("http://127.0.0.1:8081").await?;
//! let permit = client.acquire(Ask::new("edge").item([("upstream", "search")])).await?;
//! // … the work; the lease is renewed meanwhile …
//! permit.succeed();
//! # Ok(())
//! # }
//! ```
//!
//! The client is polite: it waits as long as the server says (plus jitter, so that those who were
//! told together do not come back together), gives up after a number of tries, and at once when
//! the server says that waiting is of no use. A try that was lost on the way is repeated under the
//! same request id, so that nothing is taken twice.

mod ask;
mod clock;
pub mod fields;
mod layer;
mod permit;
mod retry;

use std::time::Duration;

use tonic::{
    Code, Status,
    transport::{self, Channel, Endpoint},
};

pub use self::{
    ask::Ask,
    layer::{LimitError, LimitLayer, LimitService},
    permit::Permit,
    retry::Patience,
};
use crate::proto::porteiro::v1::{
    AcquireRequest, AcquireResponse, Cause, acquire_response::Decision,
    limiter_service_client::LimiterServiceClient,
};

/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// HTTP/2 keepalive, as the service asks for it: a dead server is noticed within twice this.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A connection to a limiter. Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    service: LimiterServiceClient<Channel>,
    patience: Patience,
}

/// Why there is no permit.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Refused, and all tries are used up, or coming back would be too late.
    #[error("refused ({cause:?}), retry after {retry_after:?}")]
    Refused {
        /// Which kind of limit.
        cause: Cause,
        /// When to come back.
        retry_after: Option<Duration>,
        /// What an HTTP server should answer: 429 or 503.
        http_status: u32,
    },
    /// More than the limit can ever hold.
    #[error("more than the limit can ever hold")]
    Never,
    /// The request id was used before: for something else, or for a lease that has ended.
    #[error("the request id was used before ({0:?})")]
    Reused(Decision),
    /// An item has no rule.
    #[error("an item has no rule")]
    UnknownKey,
    /// The call failed.
    #[error("{0}")]
    Call(#[from] Status),
}

impl Client {
    /// Connects to `http://host:port`.
    ///
    /// # Errors
    /// The address is none, or nobody listens there.
    pub async fn connect(address: &str) -> Result<Self, transport::Error> {
        let endpoint = Endpoint::from_shared(address.to_owned())?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true);
        Ok(Self::over(endpoint.connect().await?))
    }

    /// Uses a channel of the caller's making.
    pub fn over(channel: Channel) -> Self {
        Self {
            service: LimiterServiceClient::new(channel),
            patience: Patience::default(),
        }
    }

    /// The same connection with other patience.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Asks for permits until they are granted or there is no point in asking.
    ///
    /// # Cancel safety
    /// Dropped before it returns, it holds nothing: the server undoes a grant whose call is gone,
    /// and what it cannot undo ends by its TTL.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn acquire(&self, ask: Ask) -> Result<Permit, ClientError> {
        let message = ask.into_message();
        let mut tries = 0;
        loop {
            tries += 1;
            let asked = clock::now();
            let wait = match self.try_once(&message).await {
                Ok(Tried::Granted(answer)) => {
                    return Ok(Permit::new(self.service.clone(), &message, *answer, asked));
                }
                Ok(Tried::Refused(answer)) => {
                    let told = answer.retry_after.and_then(|told| told.try_into().ok());
                    match told.filter(|_| tries < self.patience.tries && !answer.hopeless) {
                        Some(told) => self.patience.after_hint(told),
                        None => return Err(refused(&answer, told)),
                    }
                }
                Err(ClientError::Call(status))
                    if status.code() == Code::Unavailable && tries < self.patience.tries =>
                {
                    self.patience.after_failure(tries)
                }
                Err(error) => return Err(error),
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn try_once(&self, message: &AcquireRequest) -> Result<Tried, ClientError> {
        let answer = self
            .service
            .clone()
            .acquire(message.clone())
            .await?
            .into_inner();
        match answer.decision() {
            Decision::Granted | Decision::Replayed | Decision::WouldGrant => {
                Ok(Tried::Granted(Box::new(answer)))
            }
            Decision::Refused | Decision::Draining => Ok(Tried::Refused(Box::new(answer))),
            Decision::Never => Err(ClientError::Never),
            Decision::UnknownKey => Err(ClientError::UnknownKey),
            decision @ (Decision::Conflict | Decision::Ended) => Err(ClientError::Reused(decision)),
            Decision::Unspecified => {
                let text = "the server decided something that this client does not know";
                Err(Status::unimplemented(text).into())
            }
        }
    }
}

enum Tried {
    Granted(Box<AcquireResponse>),
    Refused(Box<AcquireResponse>),
}

fn refused(answer: &AcquireResponse, retry_after: Option<Duration>) -> ClientError {
    ClientError::Refused {
        cause: answer.cause(),
        retry_after,
        http_status: answer.http_status,
    }
}
