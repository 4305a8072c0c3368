//! Recorded answers of the running reference: every answer field by field, every counter.

use std::{collections::BTreeMap, fs};

use porteiro::{
    model::time::Timestamp,
    proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    telemetry::{call::CallStat, page::statsd_name, rule::RuleStat},
};
use serde_json::Value;

use crate::support::{REQUEST, Service, message, scenario_service};

const RESPONSE: &str = "envoy.service.ratelimit.v3.RateLimitResponse";

#[test]
fn every_recorded_decision_is_ours() {
    let tally = compare("tests/cases/recorded/decisions.jsonl", |_| false);
    tally.print("decisions.jsonl");
    tally.assert_equal();
}

/// Recorded with the two settings that concern Redis only, neither of which is ours. A local cache
/// changes no answer. `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT` does, whenever a request is refused:
/// then it charges some of the limits, without saying which. Ours is `stacking: all_or_nothing`.
#[test]
fn every_recorded_decision_of_a_store_is_ours() {
    let text = fs::read_to_string("tests/cases/recorded/store.jsonl").unwrap();
    let (mut tally, mut partial) = (Tally::default(), 0);
    for line in text.lines() {
        let scenario: Value = serde_json::from_str(line).unwrap();
        let stops = &scenario["env"]["STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"];
        if stops == "true" {
            partial += 1;
        }
        let service = scenario_service(&scenario);
        compare_answers(
            &scenario,
            &service,
            &costs_nothing,
            &mut tally,
            stops == "true",
        );
    }
    tally.print("store.jsonl");
    println!("{partial} of the scenarios are compared up to the first refusal");
    tally.assert_equal();
}

/// A cost of 0 is a probe there, which refuses above the limit; here it is a peek (design, section
/// 4).
fn costs_nothing(call: &Value) -> bool {
    let descriptors = call["request"]["descriptors"].as_array();
    let mut costs = descriptors.into_iter().flatten();
    costs.any(|descriptor| descriptor["hits_addend"] == 0 || descriptor["hits_addend"] == "0")
}

fn shortened(text: &str) -> String {
    text.chars().take(2_000).collect()
}

#[derive(Default)]
struct Tally {
    answers: usize,
    equal_answers: usize,
    counters: usize,
    equal_counters: usize,
    on_purpose: usize,
    different: Vec<String>,
}

impl Tally {
    fn assert_equal(&self) {
        let first: Vec<String> = self
            .different
            .iter()
            .take(5)
            .map(|text| shortened(text))
            .collect();
        assert!(
            first.is_empty(),
            "{} differ, among them {first:#?}",
            self.different.len()
        );
    }

    fn print(&self, name: &str) {
        println!(
            "{name}: {} answers compared, {} equal; {} counters compared, {} equal; \
             {} answers differ on purpose",
            self.answers, self.equal_answers, self.counters, self.equal_counters, self.on_purpose,
        );
    }
}

fn compare(path: &str, on_purpose: impl Fn(&Value) -> bool) -> Tally {
    let text = fs::read_to_string(path).unwrap();
    let mut tally = Tally::default();
    for line in text.lines() {
        let scenario: Value = serde_json::from_str(line).unwrap();
        compare_scenario(&scenario, &on_purpose, &mut tally);
    }
    tally
}

fn compare_scenario(scenario: &Value, on_purpose: &impl Fn(&Value) -> bool, tally: &mut Tally) {
    let service = scenario_service(scenario);
    compare_answers(scenario, &service, on_purpose, tally, false);
    compare_counters(&scenario["id"], &service, &scenario["counters"], tally);
}

/// Of some limit nothing is left; also where a shadow rule hides that it refuses.
fn leaves_nothing(answer: &Value) -> bool {
    let statuses = answer["statuses"].as_array().into_iter().flatten();
    statuses
        .filter(|status| !status["current_limit"].is_null())
        .any(|status| status["limit_remaining"].is_null())
}

/// With `to_refusal`, up to the first answer that may refuse anything.
fn compare_answers(
    scenario: &Value,
    service: &Service,
    on_purpose: &impl Fn(&Value) -> bool,
    tally: &mut Tally,
    to_refusal: bool,
) {
    let id = &scenario["id"];
    for (index, call) in scenario["calls"].as_array().unwrap().iter().enumerate() {
        service
            .clock
            .set_wall(Timestamp::from_secs(call["now"].as_u64().unwrap()));
        let request: RateLimitRequest = message(REQUEST, &call["request"]);
        let answer = service.ask(&request);
        if on_purpose(call) {
            tally.on_purpose += 1;
            continue;
        }
        if to_refusal && leaves_nothing(&call["answer"]) {
            return;
        }
        tally.answers += 1;
        let equal = match (&answer, call["answer"].get("error")) {
            // UNKNOWN there, INVALID_ARGUMENT here: a difference on purpose, the same refusal.
            (Err(status), Some(_)) => status.code() == tonic::Code::InvalidArgument,
            (Ok(answer), None) => {
                *answer == message::<RateLimitResponse>(RESPONSE, &call["answer"])
            }
            _ => false,
        };
        if equal {
            tally.equal_answers += 1;
        } else {
            tally.different.push(format!(
                "scenario {id} call {index}: {call}\nours: {answer:?}"
            ));
        }
    }
}

fn compare_counters(id: &Value, service: &Service, recorded: &Value, tally: &mut Tally) {
    let recorded: BTreeMap<String, u64> = serde_json::from_value(recorded.clone()).unwrap();
    let ours = counters(service);
    for name in recorded
        .keys()
        .chain(ours.keys().filter(|name| !recorded.contains_key(*name)))
    {
        tally.counters += 1;
        let (want, have) = (recorded.get(name).copied(), ours.get(name).copied());
        if want == have {
            tally.equal_counters += 1;
        } else {
            tally
                .different
                .push(format!("scenario {id} {name}: {want:?}, ours {have:?}"));
        }
    }
}

/// Our statistics under the reference's names; what is zero is absent.
fn counters(service: &Service) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    service.engine.paths().for_each(|path, sums| {
        for (stat, sum) in RuleStat::ALL.into_iter().zip(sums) {
            let name = format!("rate_limit.{}.{}", statsd_name(path), stat.name());
            *all.entry(name).or_default() += sum;
        }
    });
    let calls = service.engine.calls();
    let error = calls.sum(CallStat::ServiceError);
    all.insert("call.should_rate_limit.service_error".to_owned(), error);
    all.insert(
        "global_shadow_mode".to_owned(),
        calls.sum(CallStat::GlobalShadowMode),
    );
    all.retain(|_, sum| *sum > 0);
    all
}
