//! The chat platform's routes, asked for as Envoy asks.

use porteiro::model::time::Span;
use serde_json::json;

use super::{Example, Item, item, overall};
use crate::contract::{body, header, headers};

/// A route's request as Envoy makes it: the global bucket and the caller's facts, then the route.
fn route(bucket: &str, parameter: Option<(&str, &str)>, identity: &str) -> Vec<Item> {
    let mut entries = vec![("bucket", bucket)];
    entries.extend(parameter);
    entries.push(("identity", identity));
    let global = [("bucket", "global"), ("identity", identity)];
    vec![item(&global), item(&entries)]
}

fn emojis(guild: &str, identity: &str) -> Vec<Item> {
    route(
        "guild:emojis:list::guild_id",
        Some(("guild_id", guild)),
        identity,
    )
}

#[test]
fn a_route_keeps_a_bucket_for_each_resource_and_identity() {
    let chat = Example::start("chat", "chat");
    for _ in 0..30 {
        assert!(chat.passes(&emojis("17", "7/session")));
    }
    assert!(!chat.passes(&emojis("17", "7/session")));
    // Another resource, another kind of credential, another application, another account.
    for (guild, identity) in [
        ("18", "7/session"),
        ("17", "7/bot"),
        ("17", "7/bearer/app1"),
        ("17", "7/bearer/app2"),
        ("17", "8/session"),
    ] {
        assert!(chat.passes(&emojis(guild, identity)), "{guild} {identity}");
    }
    // Without an account: the IPv4 address, the IPv6 /64.
    for (one, other, same) in [
        ("192.0.2.1", "192.0.2.2", false),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true),
        ("2001:db8:1:3::1", "2001:db8:1:4::1", false),
    ] {
        for _ in 0..30 {
            assert!(chat.passes(&emojis("17", one)));
        }
        assert_eq!(chat.passes(&emojis("17", other)), !same, "{one} {other}");
    }
}

#[test]
fn a_bucket_drains_continuously_and_headers_and_body_tell_two_different_times() {
    let chat = Example::start("chat", "chat");
    let as_bot = || {
        let mut items = emojis("17", "7/bot");
        items.push(item(&[("credential", "bot")]));
        items
    };
    let passed = chat.ask(&as_bot());
    let bucket = header(&passed, "X-RateLimit-Bucket").unwrap().to_owned();
    assert!(bucket.len() == 16 && bucket.bytes().all(|b| b.is_ascii_hexdigit()));
    let want = [
        ("X-RateLimit-Limit", "30"),
        ("X-RateLimit-Remaining", "29"),
        ("X-RateLimit-Reset", "1700000401"),
        // A thirtieth of 10 s, in milliseconds.
        ("X-RateLimit-Reset-After", "0.334"),
        ("X-RateLimit-Bucket", bucket.as_str()),
    ];
    assert_eq!(headers(&passed), want);
    for _ in 1..30 {
        assert!(chat.passes(&as_bot()));
    }
    let refused = chat.ask(&as_bot());
    let want = [
        ("X-RateLimit-Limit", "30"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "1700000410"),
        ("X-RateLimit-Reset-After", "10"),
        ("X-RateLimit-Bucket", bucket.as_str()),
        ("X-RateLimit-Scope", "user"),
        ("Retry-After", "1"),
        ("Cache-Control", "no-store"),
        ("Content-Type", "application/json"),
    ];
    assert_eq!(headers(&refused), want);
    let want = json!({"code": "RATE_LIMITED", "message": "You're being rate limited.", "global": false, "retry_after": 0.334});
    assert_eq!(body(&refused), want);
    // A part of it drains, and as much may be sent.
    chat.wait(Span::from_millis(334));
    assert!(chat.passes(&as_bot()));
    assert!(!chat.passes(&as_bot()));
    // The bucket's name is the route's, not the caller's.
    let mut other = emojis("99", "8/bot");
    other.push(item(&[("credential", "bot")]));
    assert_eq!(
        header(&chat.ask(&other), "X-RateLimit-Bucket"),
        Some(bucket.as_str())
    );
}

#[test]
fn the_time_of_a_refusal_is_exact_and_never_below_a_millisecond() {
    let chat = Example::start("chat", "chat");
    for _ in 0..30 {
        chat.ask(&emojis("17", "7/session"));
    }
    chat.wait(Span::from_nanos(333_333_333));
    let refused = chat.ask(&emojis("17", "7/session"));
    assert_eq!(body(&refused)["retry_after"], 0.001);
    assert_eq!(header(&refused, "Retry-After"), Some("1"));
    assert_eq!(
        header(&refused, "X-RateLimit-Reset-After"),
        Some("9.666666667")
    );
}

#[test]
fn only_bots_and_holders_of_a_webhooks_token_see_the_quota_of_a_success() {
    let chat = Example::start("chat", "chat");
    let with = |items: Vec<Item>, fact: Option<(&str, &str)>| {
        let facts = fact.map(|fact| item(&[fact]));
        items.into_iter().chain(facts).collect::<Vec<_>>()
    };
    let told = |items: Vec<Item>, fact| !headers(&chat.ask(&with(items, fact))).is_empty();
    let hook = || {
        vec![item(&[
            ("bucket", "webhook:execute::webhook_id"),
            ("webhook_id", "5"),
            ("identity", "192.0.2.1"),
        ])]
    };
    assert!(!told(
        emojis("17", "7/session"),
        Some(("credential", "session"))
    ));
    assert!(!told(
        emojis("17", "7/bearer/app"),
        Some(("credential", "bearer"))
    ));
    assert!(!told(emojis("17", "192.0.2.1"), None));
    assert!(told(emojis("17", "7/bot"), Some(("credential", "bot"))));
    assert!(told(hook(), Some(("caller", "webhook_token"))));
    assert!(!told(hook(), None), "with an account");
}

#[test]
fn the_global_bucket_is_of_the_identity_and_a_refusal_by_it_tells_no_route() {
    let chat = Example::start("chat", "chat");
    let ask = |n: u64| chat.ask(&emojis(&format!("guild{n}"), "7/session"));
    assert!((0..50).all(|n| overall(&ask(n)) == 1));
    let refused = ask(50);
    let want = [
        ("X-RateLimit-Scope", "global"),
        ("X-RateLimit-Global", "true"),
        ("Retry-After", "1"),
        ("Cache-Control", "no-store"),
        ("Content-Type", "application/json"),
    ];
    assert_eq!(headers(&refused), want);
    assert_eq!(body(&refused)["global"], true);
    assert_eq!(body(&refused)["retry_after"], 0.02);
    // Another credential of the account, and routes that are exempt.
    assert!(chat.passes(&emojis("1", "7/bot")));
    let exempt = item(&[
        ("bucket", "webhook:execute::webhook_id"),
        ("webhook_id", "5"),
        ("identity", "7/session"),
    ]);
    assert!(chat.passes(&[exempt]));
    chat.wait(Span::from_millis(20));
    assert_eq!(overall(&ask(51)), 1);
}

#[test]
fn flagged_accounts_have_1200_a_second_and_others_are_not_held_back_at_all() {
    let chat = Example::start("chat", "chat");
    let high = |n: u64| {
        let mut items = emojis(&format!("guild{n}"), "7/session");
        items.push(item(&[
            ("flag", "HIGH_GLOBAL_RATE_LIMIT"),
            ("identity", "7/session"),
        ]));
        items
    };
    assert!((0..1_200).all(|n| chat.passes(&high(n))));
    let refused = chat.ask(&high(1_200));
    assert_eq!(header(&refused, "X-RateLimit-Global"), Some("true"));
    for switch in [
        ("flag", "RATE_LIMIT_BYPASS"),
        ("switch", "disable_rate_limits"),
    ] {
        for _ in 0..2_000 {
            let mut items = emojis("17", "9/bot");
            items.extend([item(&[switch]), item(&[("credential", "bot")])]);
            let passed = chat.ask(&items);
            assert_eq!((overall(&passed), headers(&passed)), (1, vec![]));
        }
    }
}

#[test]
fn a_second_bucket_refuses_for_itself_and_a_refused_request_costs_nothing() {
    let chat = Example::start("chat", "chat");
    let create = || {
        let mut items = route("user:channels:create", None, "7/session");
        items.push(item(&[
            ("bucket", "user:group_dm:create"),
            ("identity", "7/session"),
        ]));
        items
    };
    assert!((0..10).all(|_| chat.passes(&create())));
    chat.wait(Span::from_secs(10));
    let refused = chat.ask(&create());
    assert_eq!(header(&refused, "X-RateLimit-Limit"), Some("10"));
    assert_eq!(
        header(&refused, "Retry-After"),
        Some("350"),
        "an hour's tenth, less 10 s"
    );
    assert!((0..10).all(|_| chat.passes(&route("user:channels:create", None, "7/session"))));
}
