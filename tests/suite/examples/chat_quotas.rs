//! Every quota of the chat platform that is applied inside a handler, as its contract lists them.

/// A quota inside a handler: its rule, the entries that find it, its size, its period in seconds,
/// and the code that clients see.
pub(super) type Quota = (
    &'static str,
    &'static [(&'static str, &'static str)],
    u64,
    u64,
    &'static str,
);

pub(super) const LIMITED: &str = "RATE_LIMITED";
pub(super) const PHONE: &str = "PHONE_RATE_LIMIT_EXCEEDED";

/// The quotas of the contract's table "answered with 429", in its order.
#[rustfmt::skip]
pub(super) const ANSWERED_429: [Quota; 20] = [
    ("chat-handlers.login.email", &[("login", ""), ("email", "ann@example.org")], 5, 900, LIMITED),
    ("chat-handlers.login.client_ip", &[("login", ""), ("client_ip", "10.0.0.1")], 10, 1_800, LIMITED),
    ("chat-handlers.register.email", &[("register", ""), ("email", "ann@example.org")], 3, 900, LIMITED),
    ("chat-handlers.register.client_ip", &[("register", ""), ("client_ip", "10.0.0.1")], 3, 3_600, LIMITED),
    ("chat-handlers.register.client_subnet", &[("register", ""), ("client_subnet", "10.0.0.1")], 15, 3_600, LIMITED),
    ("chat-handlers.resend_email_verification.email", &[("resend_email_verification", ""), ("email", "ann@example.org")], 3, 900, LIMITED),
    ("chat-handlers.recover_password.client_ip", &[("recover_password", ""), ("client_ip", "10.0.0.1")], 20, 1_800, LIMITED),
    ("chat-handlers.recover_password.email", &[("recover_password", ""), ("email", "ann@example.org")], 5, 1_800, LIMITED),
    ("chat-handlers.email_change_original.account", &[("email_change_original", ""), ("account", "7")], 3, 900, LIMITED),
    ("chat-handlers.email_change_new.account", &[("email_change_new", ""), ("account", "7")], 5, 900, LIMITED),
    ("chat-handlers.password_change_start.account", &[("password_change_start", ""), ("account", "7")], 3, 900, LIMITED),
    ("chat-handlers.password_change_resend.account", &[("password_change_resend", ""), ("account", "7")], 3, 900, LIMITED),
    ("chat-handlers.send_code.ticket", &[("send_code", ""), ("ticket", "t1")], 1, 30, LIMITED),
    ("chat-handlers.report.reporter", &[("report", ""), ("reporter", "7")], 5, 3_600, LIMITED),
    ("chat-handlers.report.reporter.channel", &[("report", ""), ("reporter", "7"), ("channel", "c")], 3, 3_600, LIMITED),
    ("chat-handlers.report.message", &[("report", ""), ("message", "m")], 20, 3_600, LIMITED),
    ("chat-handlers.report.reporter.guild", &[("report", ""), ("reporter", "7"), ("guild", "g")], 4, 3_600, LIMITED),
    ("chat-handlers.verify_phone.account", &[("verify_phone", ""), ("account", "7")], 3, 21_600, PHONE),
    ("chat-handlers.verify_phone.number", &[("verify_phone", ""), ("number", "+351900000000")], 3, 432_000, PHONE),
    ("chat-ip-authorization.cooldown.ticket", &[("cooldown", ""), ("ticket", "t1")], 1, 30, "IP_AUTHORIZATION_RESEND_COOLDOWN"),
];

/// The quotas of the contract's table "answered with 400", in its order.
#[rustfmt::skip]
pub(super) const ANSWERED_400: [Quota; 16] = [
    ("chat-forms.user_tag.account", &[("user_tag", ""), ("account", "7")], 5, 10_800, "USERNAME_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.user_bio.account", &[("user_bio", ""), ("account", "7")], 25, 1_800, "BIO_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.user_pronouns.account", &[("user_pronouns", ""), ("account", "7")], 25, 1_800, "PRONOUNS_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.user_accent_color.account", &[("user_accent_color", ""), ("account", "7")], 25, 1_800, "ACCENT_COLOR_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.user_avatar.account", &[("user_avatar", ""), ("account", "7")], 25, 1_800, "AVATAR_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.user_banner.account", &[("user_banner", ""), ("account", "7")], 25, 1_800, "BANNER_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.bot_tag.account", &[("bot_tag", ""), ("account", "bot9")], 5, 10_800, "USERNAME_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.guild.member.field_avatar", &[("guild", "g"), ("member", "7"), ("field", "avatar")], 25, 1_800, "AVATAR_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.guild.member.field_banner", &[("guild", "g"), ("member", "7"), ("field", "banner")], 25, 1_800, "BANNER_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.guild.member.field_bio", &[("guild", "g"), ("member", "7"), ("field", "bio")], 25, 1_800, "BIO_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.guild.member.field_pronouns", &[("guild", "g"), ("member", "7"), ("field", "pronouns")], 25, 1_800, "PRONOUNS_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.guild.member.field_accent_color", &[("guild", "g"), ("member", "7"), ("field", "accent_color")], 25, 1_800, "ACCENT_COLOR_CHANGED_TOO_MANY_TIMES"),
    ("chat-forms.voice_activity_sharing.account", &[("voice_activity_sharing", ""), ("account", "7")], 1, 86_400, "VOICE_ACTIVITY_SHARING_ON_COOLDOWN"),
    ("chat-mfa.mfa_login.account", &[("mfa_login", ""), ("account", "7")], 10, 900, "INVALID_CODE"),
    ("chat-mfa.mfa_login.ticket", &[("mfa_login", ""), ("ticket", "t1")], 5, 300, "INVALID_CODE"),
    ("chat-mfa.sudo_totp.account", &[("sudo_totp", ""), ("account", "7")], 10, 900, "INVALID_MFA_CODE"),
];

/// Quotas that the contract tells besides the tables.
pub(super) const BESIDES: [&str; 7] = [
    "chat.bucket_global.identity",
    "chat.flag_HIGH_GLOBAL_RATE_LIMIT.identity",
    "chat-handlers.verify_phone.provider_pause",
    "chat-ip-authorization.resend.ticket",
    "chat-handoff.failures.client_ip",
    "chat-handoff.lookups.code",
    "chat-slowmode.channel.account",
];
