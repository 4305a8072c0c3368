//! How long a caller waits for its answer: the `grpc-timeout` header.

use http::HeaderMap;
use tonic::metadata::MetadataMap;

use crate::model::time::Span;

/// The call's timeout; none when the caller gives none, or something that is no timeout: at most
/// eight digits and a unit (H, M, S, m, u, n), as the gRPC protocol says.
pub fn grpc_timeout(metadata: &MetadataMap) -> Option<Span> {
    read(metadata.get("grpc-timeout")?.to_str().ok()?)
}

/// The same of a call that is not yet read.
pub fn timeout_of(headers: &HeaderMap) -> Option<Span> {
    read(headers.get("grpc-timeout")?.to_str().ok()?)
}

fn read(text: &str) -> Option<Span> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let digits = number.len() <= 8 && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| digits)?;
    let nanos = match unit {
        "H" => 3_600_000_000_000,
        "M" => 60_000_000_000,
        "S" => 1_000_000_000,
        "m" => 1_000_000,
        "u" => 1_000,
        "n" => 1,
        _ => return None,
    };
    Some(Span::from_nanos(number.saturating_mul(nanos)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_the_protocol_says() {
        let read = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            grpc_timeout(&metadata)
        };
        assert_eq!(read("250m"), Some(Span::from_millis(250)));
        assert_eq!(read("1H"), Some(Span::from_secs(3_600)));
        assert_eq!(read("99999999u"), Some(Span::from_micros(99_999_999)));
        for wrong in ["", "m", "5", "-1S", "123456789S", "1.5S", "1s"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(grpc_timeout(&MetadataMap::new()), None);
    }
}
