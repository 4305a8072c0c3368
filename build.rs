//! Compiles `proto/` in pure Rust and keeps the descriptors for reflection and JSON.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const PROTOS: &[&str] = &[
    "envoy/service/ratelimit/v3/rls.proto",
    "porteiro/v1/limiter.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_client(true)
        .compile_fds(descriptors)?;
    Ok(())
}
