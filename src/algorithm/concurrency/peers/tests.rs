use serde_json::Value;

use super::*;
use crate::algorithm::concurrency::cases::{case, close, number, numbers, rows};

fn vectors(kind: &str) -> Vec<Value> {
    let found: Vec<Value> = rows(&case("adaptive-limits"), "vectors")
        .iter()
        .filter(|vector| vector["kind"] == kind)
        .cloned()
        .collect();
    assert!(!found.is_empty(), "no vectors of kind {kind}");
    found
}

fn millis(value: f64) -> Span {
    Span::from_secs_f64(value / 1e3)
}

fn limits(vector: &Value) -> Vec<u64> {
    numbers(&vector["limits"]).into_iter().map(whole).collect()
}

#[test]
fn gradient_as_in_the_cases() {
    for vector in vectors("gradient") {
        let params = &vector["params"];
        let mut law = Gradient::new(whole(number(params, "init")), whole(number(params, "max")));
        let mut got = Vec::new();
        for sample in rows(&vector, "samples").iter().map(numbers) {
            law.step(Sample {
                latency: millis(sample[0]),
                in_flight: whole(sample[1]),
                dropped: sample[2] > 0.0,
            });
            got.push(law.limit().0);
        }
        assert_eq!(got, limits(&vector), "{vector}");
        close(law.limit().1, number(&vector, "est"), 1e-4);
    }
}

#[test]
fn envoy_gradient_as_in_the_cases() {
    for vector in vectors("envoy_gradient") {
        let mut limit = whole(number(&vector, "start"));
        let mut got = Vec::new();
        for pair in rows(&vector, "min_sample").iter().map(numbers) {
            limit = envoy_gradient(limit, millis(pair[0]), millis(pair[1]));
            got.push(limit);
        }
        assert_eq!(got, limits(&vector), "{vector}");
    }
}

#[test]
fn envoy_gradient_sticks_below_its_fixed_point() {
    let stick = &case("little")["envoy_stick"];
    let gradient = number(stick, "g");
    close(
        gradient / (1.0 - gradient).powi(2),
        number(stick, "real_fixed_point"),
        0.2,
    );
    for pair in rows(stick, "end").iter().map(numbers) {
        let end = (0..200).fold(whole(pair[0]), |limit, _| {
            envoy_gradient(limit, millis(100.0), millis(140.0))
        });
        assert_eq!(end, whole(pair[1]), "from {}", pair[0]);
    }
}

#[test]
fn arc_as_in_the_cases() {
    for vector in vectors("arc") {
        let mut law = Arc::new(vector["params"]["limit"].as_u64().unwrap_or(1));
        let mut got = Vec::new();
        for window in rows(&vector, "windows") {
            let flag = |place: usize| window[place].as_bool().unwrap();
            law.step(window[0].as_f64().unwrap(), flag(1), flag(2));
            got.push(law.limit());
        }
        assert_eq!(got, limits(&vector), "{vector}");
    }
}

#[test]
fn bbr_as_in_the_cases() {
    for vector in vectors("bbr_max_inflight") {
        let size = bbr_size(
            whole(number(&vector, "max_pass_per_bucket")),
            millis(number(&vector, "min_rt_ms")),
            whole(number(&vector, "buckets_per_s")),
        );
        assert_eq!(size, whole(number(&vector, "max_inflight")), "{vector}");
    }
}

#[test]
fn limit_conn_as_in_the_cases() {
    for vector in vectors("limit_conn_delay") {
        let [max, burst] = ["max", "burst"].map(|name| whole(number(&vector, name)));
        let unit = Span::from_secs_f64(number(&vector, "unit"));
        for (conn, delay) in rows(&vector, "conns").iter().zip(rows(&vector, "delays")) {
            let got = limit_conn(conn.as_u64().unwrap(), max, burst, unit);
            assert_eq!(got, delay.as_f64().map(Span::from_secs_f64), "{conn}");
        }
    }
    assert_eq!(limit_conn(1, 0, 5, Span::from_secs(1)), None);
}

#[test]
fn throttling_and_admission_as_in_the_cases() {
    let little = case("little");
    for row in rows(&little, "sre").iter().map(numbers) {
        close(
            client_throttling(whole(row[0]), whole(row[1])),
            row[2],
            5.1e-5,
        );
    }
    for row in rows(&little, "admission").iter().map(numbers) {
        close(
            admission_control(whole(row[0]), whole(row[1])),
            row[2],
            5.1e-5,
        );
    }
}

#[test]
fn proportional_shares_as_in_the_cases() {
    let shares = &case("little")["shares"];
    let got = proportional_shares(number(shares, "cap"), &numbers(&shares["wants"]));
    for (got, expected) in got.into_iter().zip(numbers(&shares["proportional"])) {
        close(got, expected, 1e-6);
    }
    assert_eq!(proportional_shares(10.0, &[1.0, 2.0]), [1.0, 2.0]);
}
