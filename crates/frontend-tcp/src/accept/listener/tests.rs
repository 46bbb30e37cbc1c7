//! Sockets of a listener, and commands for the discovery service.
//!
//! A test that frees a port has an IP address of its own: the kernel may give a free port to another socket.

use super::*;

#[test]
fn an_address_that_is_in_use_is_listened_at_when_it_is_free() {
    let other = TcpListener::bind("127.77.0.1:0").expect("a port");
    let taken = other.local_addr().expect("an address");
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::start(&[taken, free], Arc::default()).expect("it does without one");
    assert_eq!(listener.addresses().len(), 1);
    TcpStream::connect(listener.addresses()[0]).expect("the other is there");
    drop(other);
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(taken).is_err() {
        assert!(Instant::now() < deadline, "it is not tried again");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Checks which sockets of another listener are taken over: those at the address, of which port 0 is any.
#[test]
fn a_former_socket_is_taken_for_its_address() {
    let any = at("127.0.0.1:0");
    let bound = TcpListener::bind(any).expect("a port");
    let here = bound.local_addr().expect("an address");
    let other = SocketAddr::new(here.ip(), here.port() ^ 1);
    for (address, expected) in [
        (here, true),
        (any, true),
        (other, false),
        (SocketAddr::new([127, 0, 0, 2].into(), here.port()), false),
        (at("127.0.0.2:0"), false),
    ] {
        assert_eq!(is_at(&bound, address), expected, "{address}");
    }
    let mut former = vec![TcpListener::bind(any).expect("a port"), bound];
    let (sockets, unbound) = bind_all(&[here], true, &mut former);
    assert!(unbound.addresses.is_empty() && unbound.next.is_none());
    assert_eq!((sockets.len(), former.len()), (1, 1));
    assert_eq!((sockets[0].address.socket, sockets[0].address.encrypted), (here, true));
}

#[test]
fn an_address_is_tried_again_each_second() {
    let other = TcpListener::bind("127.77.0.2:0").expect("a port");
    let taken = other.local_addr().expect("an address");
    let before = Instant::now();
    let (sockets, mut unbound) = bind_all(&[taken], false, &mut Vec::new());
    assert!(sockets.is_empty() && unbound.addresses.len() == 1);
    let next = unbound.next.expect("another attempt");
    assert!((before + BIND_AGAIN..=Instant::now() + BIND_AGAIN).contains(&next));
    assert!(unbound.retry(next).is_empty());
    assert_eq!((unbound.addresses.len(), unbound.next), (1, Some(next + BIND_AGAIN)));
    drop(other);
    assert!(unbound.retry(next + BIND_AGAIN - Duration::from_nanos(1)).is_empty());
    assert_eq!(unbound.retry(next + BIND_AGAIN).len(), 1);
    assert!(unbound.addresses.is_empty() && unbound.next.is_none());
    assert!(unbound.retry(next + 9 * BIND_AGAIN).is_empty());
}

/// Conformance: Base 3.1.2.3, a discovery controller has an admin queue and is requested as any controller.
#[test]
fn a_discovery_has_one_queue_of_any_controller() {
    let command = |qid, cntlid| {
        let connect = sluice_nvme::fabrics::Connect { recfmt: 0, qid, entries: 32, cattr: 0, kato_ms: 0 };
        ConnectCommand {
            entry: connect.entry(),
            connect,
            cntlid,
            subnqn: DISCOVERY_NQN.to_owned(),
            host: super::super::connect::Host { nqn: "nqn.a".to_owned(), id: [0; 16] },
            request: sluice_nvme_tcp::IcReq {
                alignment: 4,
                digests: sluice_nvme_tcp::Digests::NONE,
                r2t_max: 1,
            },
        }
    };
    let place = |qid, cntlid| check_discovery(&command(qid, cntlid)).err().map(|refusal| refusal.dw0);
    assert_eq!(place(0, CNTLID_DYNAMIC), None);
    assert_eq!(place(1, CNTLID_DYNAMIC), Some(InvalidParameter::QID.dw0()));
    assert_eq!(place(0, 1), Some(InvalidParameter::CNTLID.dw0()));
}

/// Checks that a thread wakes for the first of its deadlines, and at once for bytes that are decrypted already.
#[test]
fn a_thread_sleeps_until_its_first_deadline() {
    let addresses = Mutex::default();
    let shared = Arc::new(Shared { directory: Arc::default(), addresses, worker: Mutex::default() });
    let mut thread = AcceptThread::new(Vec::new(), UnboundAddresses::default(), shared);
    let seconds = |thread: &AcceptThread| thread.timeout().map(|timeout| timeout.tv_sec);
    assert_eq!(seconds(&thread), None);
    let now = Instant::now();
    thread.not_before = Some(now + Duration::from_secs(1000));
    assert!(seconds(&thread).is_some_and(|seconds| (900..=1000).contains(&seconds)));
    thread.unbound.next = Some(now + Duration::from_secs(500));
    assert!(seconds(&thread).is_some_and(|seconds| (400..=500).contains(&seconds)));
    thread.not_before = Some(now);
    assert!(thread.timeout().is_some_and(|timeout| timeout.tv_sec == 0 && timeout.tv_nsec > 0));
}

/// Checks that hosts can connect to copies of the sockets while no thread accepts, and that another listener takes them.
#[test]
fn another_listener_goes_on_with_the_same_sockets() {
    let listener = Listener::start(&[at("127.77.0.3:0")], Arc::default()).expect("a listener");
    let [address] = *listener.addresses() else { panic!("one address") };
    let sockets = listener.sockets().expect("copies");
    let found: Vec<_> = sockets.iter().map(|socket| socket.local_addr().ok()).collect();
    assert_eq!(found, [Some(address)]);
    drop(listener);
    let waiting = TcpStream::connect(address).expect("the kernel takes it");
    let next = Listener::resume(sockets, &[address], &[], Arc::default()).expect("a listener");
    assert_eq!(next.addresses(), [address]);
    // The thread reads what the host has sent: bytes that are no PDU end the connection.
    use std::io::{Read, Write};
    (&waiting).write_all(&[0xff; 128]).expect("room");
    waiting.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    let mut heard = Vec::new();
    let _ = (&waiting).read_to_end(&mut heard);
    assert!(!heard.is_empty(), "a termination request");
    drop(next);
    assert!(TcpStream::connect(address).is_err(), "nothing listens when both are gone");
}
