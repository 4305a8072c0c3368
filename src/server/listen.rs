//! Addresses and the sockets that listen on them.

use std::{
    fmt, fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _},
    os::unix::{
        fs::FileTypeExt as _,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    str::FromStr,
};

use socket2::{Domain, Protocol, Socket as RawSocket, Type};

/// Connections that wait in the kernel until they are accepted. The kernel caps it
/// (`net.core.somaxconn`, 4096 on Linux).
const BACKLOG: i32 = 4096;

/// Where to listen, as a person writes it: `HOST:PORT`, `:PORT` (all addresses, IPv4 and IPv6) or
/// `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A name or an address, empty for all, and a port; 0 takes a free one.
    Tcp {
        /// Without brackets. Empty: every address of the machine.
        host: String,
        /// 0 takes a free one.
        port: u16,
    },
    /// Path of a socket file.
    Unix(PathBuf),
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("want HOST:PORT, :PORT or unix:PATH, for example 0.0.0.0:8081 or [::]:8081")]
pub struct AddressError;

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() {
                Err(AddressError)
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or(AddressError)?;
        let port = port.parse().map_err(|_| AddressError)?;
        Self::tcp(host, port).ok_or(AddressError)
    }
}

impl Address {
    /// An address of a host, with or without brackets around IPv6, and a port. None when the host
    /// cannot be one.
    pub fn tcp(host: &str, port: u16) -> Option<Self> {
        let bare = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']')?,
            None => host,
        };
        let v6 = bare.contains(':');
        if v6 && bare.parse::<Ipv6Addr>().is_err() {
            return None;
        }
        if bare.contains(|c: char| c.is_whitespace() || c == '/') {
            return None;
        }
        Some(Self::Tcp {
            host: bare.to_owned(),
            port,
        })
    }
}

impl Address {
    /// Whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that listens, not yet tied to a runtime.
#[derive(Debug)]
pub enum Listener {
    /// TCP, non-blocking.
    Tcp(TcpListener),
    /// A socket file, non-blocking.
    Unix(UnixListener, PathBuf),
}

/// An address that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {purpose}: {error}")]
pub struct BindError {
    /// What the listener was for, for example `gRPC`.
    pub purpose: &'static str,
    /// As configured.
    pub address: Address,
    /// Why.
    pub error: io::Error,
}

impl Listener {
    /// Listens on `address`. `reuse_port` lets a second process listen there as well.
    pub fn bind(
        purpose: &'static str,
        address: &Address,
        reuse_port: bool,
    ) -> Result<Self, BindError> {
        let bound = match address {
            Address::Tcp { host, port } => bind_tcp(host, *port, reuse_port).map(Self::Tcp),
            Address::Unix(path) => bind_unix(path).map(|unix| Self::Unix(unix, path.clone())),
        };
        bound.map_err(|error| BindError {
            purpose,
            address: address.clone(),
            error,
        })
    }

    /// A free port on loopback, for tests.
    pub fn loopback() -> io::Result<Self> {
        bind_tcp("127.0.0.1", 0, false).map(Self::Tcp)
    }

    /// The address that is really bound, with the port that the kernel chose.
    pub fn address(&self) -> Address {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(at) => Address::Tcp {
                    host: at.ip().to_string(),
                    port: at.port(),
                },
                Err(_) => Address::Tcp {
                    host: String::new(),
                    port: 0,
                },
            },
            Self::Unix(_, path) => Address::Unix(path.clone()),
        }
    }
}

fn bind_tcp(host: &str, port: u16, reuse_port: bool) -> io::Result<TcpListener> {
    if host.is_empty() {
        // Every address: one socket for both families, or IPv4 alone where there is no IPv6.
        let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        return match listen_tcp(both, reuse_port) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                listen_tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), reuse_port)
            }
            bound => bound,
        };
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match listen_tcp(address, reuse_port) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen_tcp(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = RawSocket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if let SocketAddr::V6(v6) = address {
        // `[::]` means everybody, as it does for the reference service.
        socket.set_only_v6(!v6.ip().is_unspecified())?;
    }
    // A restart must not wait for old connections in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    // A file that a dead process left behind is in the way; one that answers is somebody's.
    let stale = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
        && UnixStream::connect(path).is_err();
    if stale {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A listener on the runtime that accepts.
pub(super) enum Accepting {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener, PathBuf),
}

/// One accepted connection, not tied to a runtime, on its way to the one that will serve it.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Accepting {
    /// To be called on the runtime that accepts.
    pub(super) fn new(listener: Listener) -> io::Result<Self> {
        Ok(match listener {
            Listener::Tcp(tcp) => Self::Tcp(tokio::net::TcpListener::from_std(tcp)?),
            Listener::Unix(unix, path) => {
                Self::Unix(tokio::net::UnixListener::from_std(unix)?, path)
            }
        })
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // An answer is one small write; it must not wait for an acknowledgement.
                stream.set_nodelay(true)?;
                stream.into_std().map(Socket::Tcp)
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                stream.into_std().map(Socket::Unix)
            }
        }
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Nothing answers there any more. If it is gone already, that is fine too.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let tcp = |host: &str, port| Address::Tcp {
            host: host.into(),
            port,
        };
        for (text, want) in [
            ("0.0.0.0:8081", tcp("0.0.0.0", 8081)),
            ("[::]:8081", tcp("::", 8081)),
            (":::8081", tcp("::", 8081)),
            (":9090", tcp("", 9090)),
            ("localhost:0", tcp("localhost", 0)),
            ("unix:/run/p.sock", Address::Unix("/run/p.sock".into())),
            ("unix:///run/p.sock", Address::Unix("/run/p.sock".into())),
        ] {
            assert_eq!(text.parse::<Address>(), Ok(want), "{text}");
        }
        for text in [
            "",
            "8081",
            "host",
            "host:",
            "host:x",
            "host:65536",
            "host:-1",
            "[::8081",
            "a b:1",
            "http://x:1",
            "unix:",
            "1:2:3",
        ] {
            assert_eq!(text.parse::<Address>(), Err(AddressError), "{text}");
        }
        assert_eq!(tcp("::", 8081).to_string(), "[::]:8081");
    }

    #[test]
    fn an_address_in_use_is_named() {
        let first = Listener::loopback().unwrap();
        let error = Listener::bind("gRPC", &first.address(), false).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&first.address().to_string()), "{text}");
        assert!(text.contains("gRPC"), "{text}");
    }

    #[test]
    fn all_addresses_means_ipv4_too() {
        let listener = Listener::bind("HTTP", &":0".parse().unwrap(), false).unwrap();
        let Address::Tcp { port, .. } = listener.address() else {
            panic!("TCP expected")
        };
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    #[test]
    fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
        let path = std::env::temp_dir().join(format!("porteiro-{}.sock", std::process::id()));
        let address = Address::Unix(path.clone());
        let first = Listener::bind("gRPC", &address, false).unwrap();
        assert!(Listener::bind("gRPC", &address, false).is_err());
        drop(first);
        let second = Listener::bind("gRPC", &address, false);
        assert!(second.is_ok(), "{second:?}");
        fs::remove_file(&path).unwrap();
    }
}
