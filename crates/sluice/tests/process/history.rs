//! The Persistent Event Log over the end of a daemon.

use crate::common::{Daemon, wait_for};
use sluice_host::{Controller, entry};
use sluice_nvme::persistent_event::{EventHeader, LogHeader, action, event};
use sluice_nvme::{FeatureId, LogId, NSID_ALL, SubmissionEntry};
use zerocopy::FromBytes;

const DRIVE: &str = "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n";

/// Returns the type and the data of every event, the newest first.
pub(crate) fn events(host: &mut Controller) -> Vec<(u8, Vec<u8>)> {
    let mut header = [0; LogHeader::SIZE];
    let get = entry::get_log_page(LogId::PERSISTENT_EVENT, NSID_ALL, 0, LogHeader::SIZE as u32, false);
    let cdw10 = get.cdw10 | u32::from(action::ESTABLISH_AND_READ) << 8;
    host.admin_read(SubmissionEntry { cdw10, ..get }, &mut header).expect("a context");
    let header = LogHeader::read_from_bytes(&header).expect("a header");
    let mut page = vec![0; (header.length.get() as usize).next_multiple_of(4)];
    host.get_log_page(LogId::PERSISTENT_EVENT, NSID_ALL, 0, &mut page).expect("the page");
    let mut rest = &page[LogHeader::SIZE..header.length.get() as usize];
    let mut events = Vec::new();
    while let Ok((header, behind)) = EventHeader::read_from_prefix(rest) {
        let (data, next) = behind.split_at(usize::from(header.length.get()));
        events.push((header.kind, data.to_vec()));
        rest = next;
    }
    assert_eq!(events.len(), header.events.get() as usize);
    events
}

/// Conformance: Base 5.16.1.14, the persistent event log keeps what happened over power cycles, and is read as it was when its context was established.
#[test]
fn what_happened_is_known_under_the_next_daemon() {
    let mut daemon = Daemon::start(DRIVE);
    let mut host = daemon.host("demo");
    host.set_feature(FeatureId::INTERRUPT_COALESCING, 0, 0x102).expect("it is set");
    let set = (event::SET_FEATURE, vec![2, 0, 0, 0, 8, 0, 0, 0, 2, 1, 0, 0]);
    let file = daemon.folder.path().join("state/history/demo");
    let is_kept = || std::fs::read(&file).is_ok_and(|bytes| bytes.windows(12).any(|it| it == &set.1[..]));
    wait_for("the event in the state folder", is_kept);
    let before = events(&mut host);
    assert_eq!(before[0], set);
    drop(host);
    daemon.crash();
    daemon.restart();
    let mut host = daemon.host("demo");
    let after = events(&mut host);
    assert_eq!((after[0].0, after[1].0), (event::POWER_ON_OR_RESET, event::SMART_SNAPSHOT));
    assert!(after.ends_with(&before), "{after:?}");
    // A torn file does not keep a drive from its host.
    drop(host);
    daemon.crash();
    let whole = std::fs::read(&file).expect("the file is there");
    std::fs::write(&file, &whole[..whole.len() - 1]).expect("room on the disk");
    daemon.restart();
    let mut host = daemon.host("demo");
    assert_eq!(events(&mut host).len(), 2, "it began anew");
    assert!(daemon.log().contains("is no history of a drive"), "{}", daemon.log());
}
