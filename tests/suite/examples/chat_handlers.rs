//! The chat platform's quotas inside handlers.

use std::{collections::BTreeSet, fs};

use porteiro::model::time::Span;
use serde_json::{Value, json};

use super::{
    Example, START,
    chat_quotas::{ANSWERED_400, ANSWERED_429, BESIDES, PHONE},
    hint, item, overall, root, rules,
};
use crate::contract::{body, header, headers};

fn start(domain: &'static str) -> Example {
    Example::start("chat", domain)
}

/// The domain of a rule.
fn domain(rule: &'static str) -> &'static str {
    rule.split_once('.').unwrap().0
}

fn seconds(nanos: u64) -> f64 {
    f64::from(u32::try_from(nanos / 1_000_000).unwrap()) / 1_000.0
}

#[test]
fn every_quota_of_both_tables_admits_so_many_and_tells_when_the_next_one_passes() {
    const QUARTER: Span = Span::from_millis(250);
    for (rule, entries, units, period, code) in ANSWERED_429.into_iter().chain(ANSWERED_400) {
        let chat = start(domain(rule));
        for n in 0..units {
            assert!(chat.passes(&[item(entries)]), "{rule}: number {n}");
        }
        chat.wait(QUARTER);
        let refused = chat.ask(&[item(entries)]);
        assert_eq!(refused.overall_code, 2, "{rule}");
        let left = seconds(Span::from_secs(period).saturating_sub(QUARTER).as_nanos());
        let body = body(&refused);
        match domain(rule) {
            "chat-handlers" => {
                let scope = if rule.ends_with(".number") {
                    "shared"
                } else {
                    "user"
                };
                let want = [
                    ("X-RateLimit-Limit", units.to_string()),
                    ("X-RateLimit-Remaining", "0".to_owned()),
                    ("X-RateLimit-Reset", (START + period).to_string()),
                    ("X-RateLimit-Reset-After", left.to_string()),
                    ("X-RateLimit-Scope", scope.to_owned()),
                    ("Retry-After", period.to_string()),
                    ("Cache-Control", "no-store".to_owned()),
                    ("Content-Type", "application/json".to_owned()),
                ];
                let want: Vec<_> = want
                    .iter()
                    .map(|(name, value)| (*name, value.as_str()))
                    .collect();
                assert_eq!(headers(&refused), want, "{rule}");
                let message = "You're being rate limited.";
                let want =
                    json!({"code": code, "message": message, "global": false, "retry_after": left});
                assert_eq!(body, want, "{rule}");
            }
            "chat-ip-authorization" => {
                assert_eq!(header(&refused, "Retry-After"), Some("30"));
                assert_eq!(header(&refused, "X-RateLimit-Limit"), None);
                let want = json!({"code": code, "message": "You can't have another e-mail yet.", "resend_available_in": 30, "retry_after": 30});
                assert_eq!(body, want);
            }
            _ => {
                let want = [
                    ("Cache-Control", "no-store"),
                    ("Content-Type", "application/json"),
                ];
                assert_eq!(headers(&refused), want, "{rule}");
                assert_eq!(body["code"], "INVALID_FORM_BODY");
                assert_eq!(body["errors"][0]["code"], code, "{rule}");
                assert_eq!(body.get("retry_after"), None);
                let message = body["errors"][0]["message"].as_str().unwrap();
                let tells = message.contains(&format!("{period} seconds"));
                assert_eq!(tells, domain(rule) == "chat-forms", "{rule}: {message}");
            }
        }
        // A refusal costs nothing: exactly then, and not a tick earlier.
        let tick = Span::from_nanos(1);
        chat.wait(
            Span::from_secs(period)
                .saturating_sub(QUARTER)
                .saturating_sub(tick),
        );
        assert!(!chat.passes(&[item(entries)]), "{rule}");
        chat.wait(tick);
        assert!(chat.passes(&[item(entries)]), "{rule}");
    }
}

/// `| … | `LIMIT` | `RULE` |` of the table: limit and rule.
fn row(line: &str) -> Option<(&str, &str)> {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [_, limit, rule] = cells[..] else {
        return None;
    };
    let is_rule = rule.starts_with("`chat");
    is_rule.then(|| (limit.trim_matches('`'), rule.trim_matches('`')))
}

#[test]
fn the_table_of_the_readme_names_the_rule_of_every_quota() {
    let rules = rules("chat");
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let rows: Vec<(&str, &str)> = readme.lines().filter_map(row).collect();
    for (limit, path) in &rows {
        let rule = rules.rules().iter().find(|rule| rule.path == *path);
        let rule = rule.unwrap_or_else(|| panic!("{path} is in the table only"));
        assert_eq!(rule.limits[0].to_string(), *limit, "{path}");
    }
    let named: Vec<&str> = rows.iter().map(|(_, rule)| *rule).collect();
    let tables = ANSWERED_429
        .iter()
        .chain(&ANSWERED_400)
        .map(|quota| quota.0);
    let want: Vec<&str> = tables.chain(BESIDES).collect();
    assert_eq!(named, want);
    // And no rule of a handler is missing from the table.
    let all = rules.rules().iter().filter(|rule| !rule.unlimited);
    let handlers: BTreeSet<&str> = all
        .map(|rule| rule.path.as_str())
        .filter(|path| path.starts_with("chat-"))
        .collect();
    let named: BTreeSet<&str> = named
        .into_iter()
        .filter(|path| path.starts_with("chat-"))
        .collect();
    assert_eq!(named, handlers);
}

#[test]
fn messages_are_in_the_callers_language() {
    let chat = start("chat-handlers");
    let refused = |locale: &str| {
        let ask = || {
            chat.ask(&[
                item(&[("send_code", ""), ("ticket", "t")]),
                item(&[("locale", locale)]),
            ])
        };
        ask();
        body(&ask())["message"].clone()
    };
    assert_eq!(refused("pt-BR"), "Você está enviando requisições demais.");
    assert_eq!(refused("de-AT, en;q=0.5"), "Du wirst gerade ausgebremst.");
    assert_eq!(refused("ja"), "You're being rate limited.");
}

#[test]
fn a_login_is_counted_by_address_and_by_subnet_as_told() {
    let chat = start("chat-handlers");
    let login = |email: &str, ip: &str| {
        chat.passes(&[
            item(&[("login", ""), ("email", email)]),
            item(&[("login", ""), ("client_ip", ip)]),
        ])
    };
    // Ten from one /64, whatever the account.
    assert!((0..10).all(|n| login(&format!("{n}@x"), &format!("2001:db8::{n:x}"))));
    assert!(!login("10@x", "2001:db8::ffff"));
    assert!(
        login("10@x", "2001:db8:0:1::1"),
        "the refusal cost the account nothing"
    );
    let register = |n: u64, ip: &str| {
        chat.passes(&[
            item(&[("register", ""), ("email", &format!("{n}@y"))]),
            item(&[("register", ""), ("client_ip", ip)]),
            item(&[("register", ""), ("client_subnet", ip)]),
        ])
    };
    // Fifteen from one /24, three an address; the /48 of IPv6 likewise.
    assert!((0..15).all(|n| register(n, &format!("192.0.2.{}", n / 3))));
    assert!(!register(15, "192.0.2.200") && register(15, "192.0.3.1"));
    assert!((0..15).all(|n| register(100 + n, &format!("2001:db8:5:{n:x}::1"))));
    assert!(!register(115, "2001:db8:5:ffff::1") && register(115, "2001:db8:6::1"));
}

#[test]
fn the_switches_turn_off_the_quotas_of_logins_and_of_registrations() {
    let chat = start("chat-handlers");
    let pairs = [
        ("disable_rate_limits", "login"),
        ("relax_registration_rate_limits", "register"),
    ];
    for (switch, operation) in pairs {
        let ask = |switch: &str| {
            chat.passes(&[
                item(&[("switch", switch)]),
                item(&[(operation, ""), ("email", "ann@x")]),
                item(&[(operation, ""), ("client_ip", "192.0.2.9")]),
            ])
        };
        assert!((0..100).all(|_| ask(switch)), "{operation}");
        assert!(
            (0..3).all(|_| ask("none")) && (0..8).any(|_| !ask("none")),
            "{operation}"
        );
    }
}

#[test]
fn thirty_seconds_count_from_the_send_before() {
    let chat = start("chat-handlers");
    let send = || chat.passes(&[item(&[("send_code", ""), ("ticket", "t")])]);
    assert!(send());
    chat.wait(Span::from_secs(29));
    assert!(!send());
    chat.wait(Span::from_secs(1));
    assert!(send());
    chat.wait(Span::from_millis(29_999));
    assert!(!send());
}

#[test]
fn accounts_share_a_number_and_the_providers_pause() {
    let chat = start("chat-handlers");
    let pause = || item(&[("verify_phone", ""), ("provider_pause", "+351900")]);
    let send = |account: &str| {
        chat.ask(&[
            item(&[("verify_phone", ""), ("account", account)]),
            item(&[("verify_phone", ""), ("number", "+351900")]),
        ])
    };
    assert!(
        ["a", "b", "c"]
            .iter()
            .all(|account| overall(&send(account)) == 1)
    );
    let refused = send("d");
    assert_eq!(header(&refused, "X-RateLimit-Scope"), Some("shared"));
    assert_eq!(header(&refused, "X-RateLimit-Reset-After"), Some("432000"));
    assert_eq!(body(&refused)["code"], PHONE);
    // Three by one account: its own limit.
    let own = |number: &str| {
        chat.ask(&[
            item(&[("verify_phone", ""), ("account", "e")]),
            item(&[("verify_phone", ""), ("number", number)]),
        ])
    };
    assert!(
        ["1", "2", "3"]
            .iter()
            .all(|number| overall(&own(number)) == 1)
    );
    assert_eq!(header(&own("4"), "X-RateLimit-Scope"), Some("user"));
    // The provider asks for 90 s.
    let whole = || pause().cost(86_400);
    assert!(chat.peek(&[whole()]).would_pass);
    assert!(chat.passes(&[pause().cost(90)]));
    chat.wait(Span::from_millis(12_500));
    assert_eq!(
        hint(&chat.peek(&[whole()])),
        Some(Span::from_millis(77_500))
    );
    chat.wait(Span::from_millis(77_500));
    assert!(chat.peek(&[whole()]).would_pass);
}

#[test]
fn an_ip_authorization_can_be_resent_once_and_not_in_the_first_thirty_seconds() {
    let chat = start("chat-ip-authorization");
    let cooldown = || item(&[("cooldown", ""), ("ticket", "t")]);
    let resend = || chat.ask(&[cooldown().cost(0), item(&[("resend", ""), ("ticket", "t")])]);
    assert!(chat.passes(&[cooldown()]), "issued");
    chat.wait(Span::from_millis(10_500));
    let refused = resend();
    let want = [
        ("Retry-After", "20"),
        ("Cache-Control", "no-store"),
        ("Content-Type", "application/json"),
    ];
    assert_eq!(headers(&refused), want);
    assert_eq!(
        (
            &body(&refused)["resend_available_in"],
            &body(&refused)["retry_after"]
        ),
        (&json!(20), &json!(20))
    );
    chat.wait(Span::from_millis(19_500));
    assert_eq!(overall(&resend()), 1);
    // The ticket ends 15 minutes after it was issued.
    chat.wait(Span::from_secs(869));
    assert_eq!(
        body(&resend())["code"],
        "IP_AUTHORIZATION_RESEND_LIMIT_EXCEEDED"
    );
}

#[test]
fn a_form_is_refused_as_a_whole_and_each_field_says_so() {
    let chat = start("chat-forms");
    let field = |name: &str| item(&[(name, ""), ("account", "7")]);
    assert!((0..25).all(|_| chat.passes(&[field("user_bio")])));
    let both = chat.ask(&[
        field("user_pronouns"),
        field("user_bio"),
        item(&[("locale", "pt")]),
    ]);
    assert_eq!(
        both.statuses
            .iter()
            .map(|status| status.code)
            .collect::<Vec<_>>(),
        [1, 2, 1]
    );
    assert_eq!(body(&both)["errors"][0]["path"], "bio");
    // The bio's refusal cost the pronouns nothing.
    assert!((0..25).all(|_| chat.passes(&[field("user_pronouns")])));
    // A member keeps a quota in each guild.
    let bio =
        |guild: &str| chat.passes(&[item(&[("guild", guild), ("member", "7"), ("field", "bio")])]);
    assert!((0..25).all(|_| bio("g1")) && !bio("g1") && bio("g2"));
    // What a later filter or the handler reads.
    let refused = chat.ask(&[field("user_bio")]);
    let metadata = refused.dynamic_metadata.unwrap();
    assert!(
        metadata.fields.contains_key("rule_metadata"),
        "{metadata:?}"
    );
}

#[test]
fn attempts_count_before_the_code_is_looked_at_and_a_right_one_resets_them() {
    let chat = start("chat-mfa");
    let items = |ticket: &str| {
        [
            item(&[("mfa_login", ""), ("account", "7")]),
            item(&[("mfa_login", ""), ("ticket", ticket)]),
        ]
    };
    assert!((0..5).all(|_| chat.passes(&items("t1"))));
    // Whatever the sixth code is: the ticket's quota is used up, and it reads as a wrong one.
    let refused = chat.ask(&items("t1"));
    let want: Value = json!({"path": "code", "code": "INVALID_CODE", "message": "Invalid code."});
    assert_eq!(body(&refused)["errors"], json!([want]));
    // With the next tickets the account's.
    assert!((0..5).all(|_| chat.passes(&items("t2"))));
    assert!(!chat.passes(&items("t3")));
    // Sudo has a count of its own.
    assert!(chat.passes(&[item(&[("sudo_totp", ""), ("account", "7")])]));
    assert_eq!(chat.reset(&items("t2")).counters, 2);
    assert!((0..5).all(|_| chat.passes(&items("t2"))));
}

#[test]
fn five_failures_block_for_fifteen_minutes_from_the_latest() {
    let chat = start("chat-handoff");
    let address = || item(&[("failures", ""), ("client_ip", "2001:db8::1")]);
    let neighbour = || item(&[("failures", ""), ("client_ip", "2001:db8::2")]).cost(0);
    let minutes = |count: u64| Span::from_secs(60 * count);
    for _ in 0..5 {
        assert!(chat.passes(&[address().cost(0)]), "not blocked");
        chat.wait(minutes(10));
        assert!(chat.passes(&[address()]), "a failure");
    }
    chat.wait(minutes(15).saturating_sub(Span::from_nanos(1)));
    let blocked = chat.ask(&[neighbour()]);
    assert_eq!(body(&blocked)["code"], "INVALID_HANDOFF_CODE");
    assert_eq!(header(&blocked, "Retry-After"), None);
    chat.wait(Span::from_nanos(1));
    assert!(chat.passes(&[neighbour()]));
}

#[test]
fn a_handoff_code_is_looked_up_three_times() {
    let chat = start("chat-handoff");
    let look = || chat.passes(&[item(&[("lookups", ""), ("code", "c")])]);
    for _ in 0..3 {
        assert!(look());
        chat.wait(Span::from_secs(86_400));
    }
    assert!(!look());
    chat.wait(Span::from_secs(86_400 * 20));
    assert!(!look());
}

#[test]
fn slow_mode_counts_from_the_message_before_at_the_channels_interval() {
    let chat = start("chat-slowmode");
    let message = |channel: &str, account: &str, interval: u64| {
        let limit = json!({"unit": "SECOND", "requests_per_unit": 1, "unit_multiplier": interval});
        item(&[("channel", channel), ("account", account)]).with("limit", limit)
    };
    chat.wait(Span::from_millis(1_234));
    assert!(chat.peek(&[message("c", "7", 45)]).would_pass);
    assert!(chat.passes(&[message("c", "7", 45)]));
    chat.wait(Span::from_millis(100));
    // The state, without an attempt, as often as one likes.
    for _ in 0..3 {
        let state = chat.peek(&[message("c", "7", 45)]);
        assert_eq!(hint(&state), Some(Span::from_millis(44_900)));
    }
    let refused = chat.ask(&[message("c", "7", 45)]);
    let want = [
        ("Retry-After", "45"),
        ("Cache-Control", "no-store"),
        ("Content-Type", "application/json"),
    ];
    assert_eq!(headers(&refused), want);
    let want =
        json!({"code": "SLOWMODE_RATE_LIMITED", "message": "Slow down.", "retry_after": 44.9});
    assert_eq!(body(&refused), want);
    // Each pair of account and channel for itself.
    assert!(chat.passes(&[message("c", "8", 45)]) && chat.passes(&[message("d", "7", 45)]));
    let exempt = item(&[("permission", "BYPASS_SLOWMODE")]);
    assert!(chat.passes(&[message("c", "7", 45), exempt]));
    chat.wait(Span::from_millis(44_900));
    assert!(chat.passes(&[message("c", "7", 45)]));
}
