//! The contracts of `deploy/examples`, as the documentation of the systems they copy says them.

mod chat;
mod chat_handlers;
mod chat_quotas;
mod github_style;
mod marketplace;
mod sms_guard;
mod stripe_style;

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use porteiro::{
    api::{bounds::Bounds, limiter::Limiter},
    config::{self, LoadOptions},
    model::time::{Span, Timestamp},
    proto::{
        envoy::service::ratelimit::v3::RateLimitResponse,
        porteiro::v1::{
            PeekRequest, PeekResponse, ResetRequest, ResetResponse,
            limiter_service_server::LimiterService,
        },
    },
    rules::Rules,
};
use serde_json::{Value, json};

use crate::support::{REQUEST, Service, message, now, service};

/// 2023-11-14T22:20:00Z
const START: u64 = 1_700_000_400;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn folder(name: &str) -> PathBuf {
    root().join("deploy/examples").join(name)
}

/// The rules of an example, which `porteiro check` has nothing to say about.
fn rules(name: &str) -> Rules {
    let loaded = config::load(&folder(name).join("rules"), &LoadOptions::default());
    assert!(loaded.findings.is_empty(), "{:?}", loaded.findings);
    loaded.into_rules().unwrap()
}

/// An example in memory, with a clock that the test moves.
struct Example {
    service: Service,
    limiter: Limiter,
    domain: &'static str,
}

/// One descriptor: entries, and what else it has in JSON.
struct Item(Value);

/// A descriptor of these entries.
fn item(entries: &[(&str, &str)]) -> Item {
    let entry = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
    Item(json!({"entries": entries.iter().map(entry).collect::<Value>()}))
}

impl Item {
    /// With a field of the descriptor.
    fn with(mut self, field: &str, value: Value) -> Self {
        self.0[field] = value;
        self
    }

    /// With a cost of its own.
    fn cost(self, units: u64) -> Self {
        self.with("hitsAddend", json!(units.to_string()))
    }
}

impl Example {
    /// The example at [`START`]; requests go to this domain.
    fn start(name: &str, domain: &'static str) -> Self {
        let files = fs::read_dir(folder(name).join("rules")).unwrap();
        let files: BTreeMap<String, String> = files
            .map(|entry| {
                let path = entry.unwrap().path();
                let text = fs::read_to_string(&path).unwrap();
                (path.display().to_string(), text)
            })
            .collect();
        let service = service(&files, &BTreeMap::new(), Timestamp::from_secs(START));
        let limiter = Limiter::new(Arc::clone(&service.engine), Bounds::default());
        Self {
            service,
            limiter,
            domain,
        }
    }

    fn wait(&self, span: Span) {
        self.service.clock.advance(span);
    }

    fn json(&self, items: &[Item]) -> Value {
        let descriptors: Value = items.iter().map(|item| item.0.clone()).collect();
        json!({"domain": self.domain, "descriptors": descriptors})
    }

    fn ask(&self, items: &[Item]) -> RateLimitResponse {
        self.service
            .ask(&message(REQUEST, &self.json(items)))
            .unwrap()
    }

    /// Asks, and says whether it passed.
    fn passes(&self, items: &[Item]) -> bool {
        self.ask(items).overall_code == 1
    }

    fn peek(&self, items: &[Item]) -> PeekResponse {
        let request: PeekRequest = message("porteiro.v1.PeekRequest", &self.json(items));
        let response = now(self.limiter.peek(tonic::Request::new(request)));
        response.unwrap().into_inner()
    }

    fn reset(&self, items: &[Item]) -> ResetResponse {
        let request: ResetRequest = message("porteiro.v1.ResetRequest", &self.json(items));
        let response = now(self.limiter.reset(tonic::Request::new(request)));
        response.unwrap().into_inner()
    }
}

/// The hint of a look, in nanoseconds.
fn hint(looked: &PeekResponse) -> Option<Span> {
    let wait = looked.retry_after?;
    let nanos = i128::from(wait.seconds) * 1_000_000_000 + i128::from(wait.nanos);
    Some(Span::from_nanos(u64::try_from(nanos).unwrap()))
}

/// 1 passes, 2 is over a limit.
fn overall(answer: &RateLimitResponse) -> i32 {
    answer.overall_code
}
