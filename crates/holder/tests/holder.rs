//! A holder and the processes beside it. Each daemon is a process of its own: this test program, started again.

use sluice_holder::{HeldDrive, Holder, Limits, Server};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// A holder on a thread, with a folder of its own.
struct Rig {
    path: PathBuf,
    told: Option<UnixStream>,
    thread: Option<std::thread::JoinHandle<std::io::Result<()>>>,
}

impl Rig {
    fn start(name: &str, limits: Limits) -> Self {
        let path = std::env::temp_dir().join(format!("sluice-holder-{}-{name}", std::process::id()));
        let server = Server::listen(&path, limits).expect("the path is free");
        let (told, telling) = UnixStream::pair().expect("a pair");
        let thread = std::thread::spawn(move || server.run(telling.as_fd()));
        Self { path, told: Some(told), thread: Some(thread) }
    }

    fn take(&self) -> Vec<HeldDrive> {
        Holder::new(&self.path, "daemon").take().expect("an answer")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.told.take());
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        let _ = std::fs::remove_file(&self.path);
        assert!(matches!(ended, Some(Ok(Ok(())))), "the holder ends in order");
    }
}

/// Starts a daemon that keeps one record of a drive, obeys `then`, and waits for its death.
fn daemon(path: &Path, record: &str, then: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("it runs"))
        .args(["--exact", "a_daemon", "--nocapture", "--include-ignored"])
        .env("HOLDER", path)
        .env("RECORD", record)
        .env("THEN", then)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be started again");
    let mut line = Vec::new();
    let out = child.stdout.as_mut().expect("a pipe");
    while !line.ends_with(b"it is kept\n") {
        let mut byte = [0];
        out.read_exact(&mut byte).expect("it has not ended");
        line.push(byte[0]);
    }
    child
}

/// Runs the daemon, in a process that another test starts.
#[test]
#[ignore = "a process of the other tests"]
fn a_daemon() {
    let (Ok(path), Ok(record)) = (std::env::var("HOLDER"), std::env::var("RECORD")) else { return };
    let keeping = Holder::new(Path::new(&path), "daemon").keep("drive").expect("a holder");
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    ours.write_all(b"from the daemon").expect("room");
    keeping.put(b"an older one", &[]).expect("kept");
    keeping.put(record.as_bytes(), &[theirs.as_fd(), ours.as_fd()]).expect("kept");
    if std::env::var("THEN").as_deref() == Ok("release") {
        keeping.release();
    }
    println!("it is kept");
    // The other process kills this one.
    let _ = std::io::stdin().read(&mut [0]);
}

fn kill(mut child: Child) {
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn the_last_record_of_a_dead_daemon_is_there_with_its_sockets() {
    let rig = Rig::start("last", Limits::default());
    assert!(rig.take().is_empty());
    kill(daemon(&rig.path, "a record", ""));
    // Also for a daemon that dies before it has a record of its own.
    for _ in 0..2 {
        let [drive] = &mut rig.take()[..] else { panic!("one drive") };
        assert_eq!((drive.name.as_str(), &drive.bytes[..]), ("drive", &b"a record"[..]));
        let [theirs, _ours] = &drive.fds[..] else { panic!("two descriptors") };
        assert!(!File::from(theirs.try_clone().expect("a descriptor")).metadata().expect("there").is_file());
    }
    let [drive] = &mut rig.take()[..] else { panic!("one drive") };
    let socket: OwnedFd = drive.fds.remove(0);
    let mut found = [0; 15];
    UnixStream::from(socket).read_exact(&mut found).expect("its bytes are still there");
    assert_eq!(&found, b"from the daemon");
    let other = Holder::new(&rig.path, "another daemon");
    assert!(other.take().expect("an answer").is_empty());
}

#[test]
fn a_drive_that_was_released_is_not_kept() {
    let rig = Rig::start("released", Limits::default());
    kill(daemon(&rig.path, "a record", "release"));
    assert!(rig.take().is_empty());
    // One that its daemon has left is given up by the next.
    kill(daemon(&rig.path, "a record", ""));
    assert_eq!(rig.take().len(), 1);
    Holder::new(&rig.path, "daemon").keep("drive").expect("a holder").release();
    let begun = Instant::now();
    while !rig.take().is_empty() {
        assert!(begun.elapsed() < LIMIT);
    }
}

#[test]
fn nothing_is_taken_from_a_daemon_that_lives() {
    let rig = Rig::start("lives", Limits { end: Duration::from_millis(50), ..Limits::default() });
    let child = daemon(&rig.path, "a record", "");
    let refused = Holder::new(&rig.path, "daemon").take().expect_err("it serves").to_string();
    assert!(refused.contains(&format!("process {} still serves", child.id())), "{refused}");
    kill(child);
    assert_eq!(rig.take().len(), 1);
}

#[test]
fn drives_that_nobody_continues_are_given_up() {
    let rig = Rig::start("given-up", Limits { patience: Duration::ZERO, ..Limits::default() });
    kill(daemon(&rig.path, "a record", ""));
    let begun = Instant::now();
    while !rig.take().is_empty() {
        assert!(begun.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_path_has_one_holder_at_a_time() {
    let rig = Rig::start("one", Limits::default());
    let taken = Server::listen(&rig.path, Limits::default()).expect_err("there is one");
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    let path = rig.path.clone();
    drop(rig);
    // The socket of a holder that is gone is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("the path is free"));
    drop(Server::listen(&path, Limits::default()).expect("nobody listens"));
    std::fs::remove_file(&path).expect("it is there");
}

#[test]
fn strange_messages_end_their_connection_only() {
    let rig = Rig::start("strange", Limits::default());
    kill(daemon(&rig.path, "a record", ""));
    for bytes in [
        &b""[..],
        b"x",
        b"\x64\0\0",
        b"\x64\0\0\x02name",
        b"\x64\0\0\x01no drive",
        b"\x66\0\0",
        b"\x65\0\0\x01\xff\xfe",
    ] {
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None);
        let socket = socket.expect("a socket");
        let address = rustix::net::SocketAddrUnix::new(&rig.path).expect("a path");
        rustix::net::connect(&socket, &address).expect("it listens");
        // It may be closed already.
        let _ = rustix::net::send(&socket, bytes, rustix::net::SendFlags::NOSIGNAL);
    }
    assert_eq!(rig.take().len(), 1);
}
