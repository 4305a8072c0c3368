//! The doors, and what is said when they are open.

use crate::{
    cli::settings::Settings,
    server::{Address, BindError, Listener, Listeners},
};

/// Takes every address before anything else is begun.
pub(super) fn bind(settings: &Settings) -> Result<Listeners, BindError> {
    let listen = |purpose, address| Listener::bind(purpose, address, settings.reuse_port);
    let metrics = settings.metrics.as_ref();
    let listeners = Listeners {
        grpc: listen("gRPC", &settings.grpc)?,
        http: listen("HTTP", &settings.http)?,
        admin: listen("admin", &settings.admin)?,
        metrics: metrics.map(|at| listen("metrics", at)).transpose()?,
    };
    Ok(listeners)
}

/// Says where, and how to try it to whoever gave no rules.
pub(super) fn announce(settings: &Settings, listeners: &Listeners) {
    if settings.config.is_none() && settings.xds.is_none() && !settings.noop {
        print_quickstart(&listeners.http);
    }
    tracing::info!(
        grpc = %listeners.grpc.address(),
        http = %listeners.http.address(),
        admin = %listeners.admin.address(),
        workers = settings.workers,
        "listening"
    );
}

/// The first line that the quickstart prints, and how to see it refuse.
#[expect(
    clippy::print_stdout,
    reason = "it is what the program was started for"
)]
fn print_quickstart(http: &Listener) {
    let at = match http.address() {
        Address::Tcp { host, port } if host == "0.0.0.0" || host == "::" => {
            format!("http://127.0.0.1:{port}")
        }
        at @ Address::Tcp { .. } => format!("http://{at}"),
        Address::Unix(path) => format!("--unix-socket {} http://localhost", path.display()),
    };
    println!(
        "porteiro serves its quickstart rules from memory: 3 requests per user and minute \
         (--config PATH serves yours). Four times this gives 200, 200, 200, 429:\n\n  \
         curl -i {at}/json -d '{{\"domain\":\"quickstart\",\"descriptors\":[{{\"entries\":\
         [{{\"key\":\"user\",\"value\":\"ana\"}}]}}]}}'\n"
    );
}
