//! TCP connections that outlive their process: the kernel still sends what the process has written.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Interval between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// Waits until the peers at these addresses have closed all connections that no process has any more. They have received
/// and handled everything then. Returns false at the time limit.
pub(crate) fn wait_for_end(addresses: &[String], until: Instant) -> bool {
    let peers: Vec<SocketAddr> =
        addresses.iter().filter_map(|it| it.to_socket_addrs().ok()).flatten().collect();
    while !peers.is_empty() && are_there(&peers) {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

fn are_there(peers: &[SocketAddr]) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
        let table = fs::read_to_string(path).unwrap_or_default();
        table.lines().skip(1).filter_map(orphan).any(|peer| peers.contains(&peer))
    })
}

/// Returns the peer of a line of the kernel's table, if no process has the socket, and the peer has not closed its
/// end.
fn orphan(line: &str) -> Option<SocketAddr> {
    let mut words = line.split_whitespace().skip(2);
    let (peer, state) = (words.next()?, words.next()?);
    let inode = words.nth(5)?;
    // FIN_WAIT1, FIN_WAIT2, LAST_ACK and CLOSING.
    let is_sending = matches!(state, "04" | "05" | "09" | "0B");
    if inode == "0" && is_sending { address(peer) } else { None }
}

/// Reads an address as the kernel writes it: words of 32 bits in the order of the machine.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(host.get(at * 8..at * 8 + 8)?, 16).ok();
    let ip: IpAddr = match host.len() {
        8 => Ipv4Addr::from(word(0)?.to_ne_bytes()).into(),
        32 => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].map(u32::to_ne_bytes).concat();
            Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        let line = |peer: &str, state: &str, inode: &str| {
            format!(
                "   1: 0100007F:1F90 {peer} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1"
            )
        };
        let at = |text: &str| text.parse::<SocketAddr>().ok();
        assert_eq!(orphan(&line("0100007F:115C", "05", "0")), at("127.0.0.1:4444"));
        assert_eq!(orphan(&line("0100007F:115C", "06", "0")), None, "the peer has closed it");
        assert_eq!(orphan(&line("0100007F:115C", "04", "77")), None, "a process has it");
        let six = "B80D0120000000000000000001000000:0050";
        assert_eq!(orphan(&line(six, "0B", "0")), at("[2001:db8::1]:80"));
        assert_eq!(orphan(&line("0000000000000000FFFF00000100007F:0050", "04", "0")), at("127.0.0.1:80"));
        for text in ["", "x", "   1: 0100007F:1F90", "  sl  local_address rem_address   st"] {
            assert_eq!(orphan(text), None, "{text}");
        }
    }

    #[test]
    fn a_connection_is_there_until_its_peer_closes_it() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it listens");
        let mut socket = TcpStream::connect(address).expect("it listens");
        let (mut peer, _) = listener.accept().expect("it has connected");
        socket.write_all(b"late").expect("room");
        drop(socket);
        let addresses = [address.to_string()];
        assert!(!wait_for_end(&addresses, Instant::now() + Duration::from_millis(20)), "bytes are under way");
        let mut found = Vec::new();
        peer.read_to_end(&mut found).expect("read");
        drop(peer);
        assert!(wait_for_end(&addresses, Instant::now() + Duration::from_secs(60)));
        assert!(wait_for_end(&[], Instant::now()));
    }
}
