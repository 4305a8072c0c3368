//! Compiles `proto/` in pure Rust and keeps the descriptors for reflection and JSON.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

/// What is served: reflection and JSON know these.
const SERVED: &[&str] = &[
    "envoy/service/ratelimit/v3/rls.proto",
    "porteiro/v1/limiter.proto",
];

/// What is asked of others.
const ASKED: &[&str] = &["envoy/service/discovery/v3/discovery.proto", RULES];

/// Rules as messages; read as JSON.
const RULES: &str = "ratelimit/config/ratelimit/v3/rls_conf.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let served = protox::compile(SERVED, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), served.encode_to_vec())?;
    let rules = protox::compile([RULES], ["proto"])?;
    fs::write(out.join("rules.bin"), rules.encode_to_vec())?;
    let all = protox::compile([SERVED, ASKED].concat(), ["proto"])?;
    tonic_prost_build::configure()
        .build_client(true)
        .compile_fds(all)?;
    Ok(())
}
