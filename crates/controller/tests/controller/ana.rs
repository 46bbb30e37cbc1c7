//! Asymmetric Namespace Access: reports to a host about its paths to a namespace, and the commands that they
//! permit.

use crate::host::{Host, PAGE, entry, get_log, io};
use crate::model::Model;
use sluice_controller::AnaRule;
use sluice_nvme::AnaState;
use sluice_nvme::identify::{IdentifyController, IdentifyNamespace};
use sluice_nvme::log::{AnaGroup, AnaHeader};
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{Cns, LogId, NSID_ALL, Status, SubmissionEntry};
use zerocopy::FromBytes;

/// Dword 0 of the event: a notice, of this log page.
const CHANGED: u32 = 0x000c_0302;

/// Port of the host.
const HERE: &str = "10.0.0.1:4420";
const ELSEWHERE: &str = "10.0.0.2:4420";

fn rule(port: Option<&str>, group: Option<u32>, state: AnaState) -> AnaRule {
    AnaRule { port: port.map(str::to_owned), group, state }
}

/// Returns a subsystem for several controllers with two namespaces in group 1 and one in group 3.
fn host(model: &Model) -> Host {
    let mut host = Host::new(vec![
        model.namespace(1),
        Model::new(64).namespace(2).in_ana_group(3),
        Model::new(64).namespace(5),
    ]);
    host.controller.subsystem.expect(2);
    host.controller.controller.set_port(&mut host.controller.subsystem, HERE);
    host.enable();
    host.create_pair(1, 64);
    host
}

fn say(host: &mut Host, rules: &[AnaRule]) {
    host.controller.subsystem.set_ana(rules.to_vec());
    host.run();
}

/// Returns the change count, and for each group its number, state, change count and namespaces.
type Log = (u64, Vec<(u32, u8, u64, Vec<u32>)>);

fn log(host: &mut Host) -> Log {
    let page = host.log(LogId::ASYMMETRIC_NAMESPACE_ACCESS, 256).expect("a page");
    let (header, mut rest) = AnaHeader::read_from_prefix(&page).expect("a header");
    let mut groups = Vec::new();
    for _ in 0..header.groups {
        let (group, behind) = AnaGroup::read_from_prefix(rest).expect("a group");
        let (nsids, behind) = behind.split_at(4 * group.namespaces as usize);
        let nsids = nsids.as_chunks::<4>().0.iter().map(|nsid| u32::from_le_bytes(*nsid)).collect();
        groups.push((group.group, group.state, group.changes, nsids));
        rest = behind;
    }
    (header.changes, groups)
}

/// Conformance: Base 5.17.2.1, Identify Controller of a subsystem with several controllers says what ANA groups there may be and which states are reported; Identify Namespace, of which group a namespace is.
#[test]
fn identify_tells_of_groups_where_there_are_several_ways() {
    let mut shared = host(&Model::new(64));
    let mut alone = Host::enabled(vec![Model::new(64).namespace(1).in_ana_group(3)]);
    for (host, cmic, oaes, groups, states, nsid, group) in
        [(&mut shared, 0b1011, 1 << 11, 32, 0x5f, 2, 3), (&mut alone, 0, 0, 0, 0, 1, 0)]
    {
        let page = host.identify(Cns::CONTROLLER, 0).expect("a page");
        let page = IdentifyController::read_from_bytes(&page).expect("a whole page");
        assert_eq!((page.cmic, page.oaes & 1 << 11, page.anacap), (cmic, oaes, states));
        assert_eq!((page.anagrpmax, page.nanagrpid), (groups, groups));
        assert_eq!((page.anatt > 0, page.mnan > 0), (groups > 0, groups > 0));
        let page = host.identify(Cns::NAMESPACE, nsid).expect("a page");
        let page = IdentifyNamespace::read_from_bytes(&page).expect("a whole page");
        assert_eq!((page.nmic, page.anagrpid), (u8::from(group > 0), group));
    }
}

/// Conformance: Base 5.16.1.13, the ANA log page says in which state each group of namespaces is, and counts changes since the last reset.
/// Conformance: Base 8.1, a change of an ANA state is a notice, and reading the log page lets the next one through.
#[test]
fn a_host_is_told_of_states_and_of_their_changes() {
    let mut host = host(&Model::new(64));
    let untouched = (0, vec![(1, 1, 0, vec![1, 5]), (3, 1, 0, vec![2])]);
    assert_eq!(log(&mut host), untouched);
    for _ in 0..2 {
        host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    }
    host.run();
    // Neither another port's state nor an empty group's concerns this host.
    let others = [rule(Some(ELSEWHERE), None, AnaState::Inaccessible), rule(None, Some(2), AnaState::Change)];
    say(&mut host, &others);
    assert_eq!(host.reap(0), None);
    assert_eq!(log(&mut host), untouched);
    say(&mut host, &[rule(None, None, AnaState::NonOptimized)]);
    assert_eq!(host.reap(0).map(|event| event.dw0), Some(CHANGED));
    // There is no further notice before the page is read.
    let rules =
        [rule(None, None, AnaState::NonOptimized), rule(Some(HERE), Some(3), AnaState::PersistentLoss)];
    say(&mut host, &rules);
    assert_eq!(host.reap(0), None);
    assert_eq!(log(&mut host), (2, vec![(1, 2, 1, vec![1, 5]), (3, 4, 2, vec![2])]));
    say(&mut host, &rules[..1]);
    assert_eq!(host.reap(0).map(|event| event.dw0), Some(CHANGED));
    assert_eq!(log(&mut host), (3, vec![(1, 2, 1, vec![1, 5]), (3, 2, 3, vec![2])]));
    host.controller.reset();
    host.enable();
    assert_eq!(log(&mut host), (0, vec![(1, 2, 0, vec![1, 5]), (3, 2, 0, vec![2])]));
}

/// Conformance: Base 5.16.1.13, with Return Groups Only the ANA log page has no namespaces.
#[test]
fn groups_come_without_their_namespaces_if_asked_so() {
    let mut host = host(&Model::new(64));
    say(&mut host, &[rule(None, Some(3), AnaState::Change)]);
    let ask = get_log(LogId::ASYMMETRIC_NAMESPACE_ACCESS, 256);
    let ask = SubmissionEntry { cdw10: ask.cdw10 | 1 << 8, ..ask };
    let page = host.admin_read(ask, 256).expect("a page");
    for (offset, group, state) in [(16, 1, 0x1), (48, 3, 0xf)] {
        let (found, _) = AnaGroup::read_from_prefix(&page[offset..]).expect("a group");
        assert_eq!((found.group, found.namespaces, found.state), (group, 0, state));
    }
}

/// Conformance: Base 8.1, commands are refused with the status that their group's state has.
#[test]
fn commands_are_refused_by_ways_that_do_not_lead_there() {
    let model = Model::new(64);
    let mut host = host(&model);
    let buffer = host.allocate(2 * PAGE);
    for (state, expected) in [
        (AnaState::Inaccessible, Status::ASYMMETRIC_ACCESS_INACCESSIBLE),
        (AnaState::PersistentLoss, Status::ASYMMETRIC_ACCESS_PERSISTENT_LOSS),
        (AnaState::Change, Status::ASYMMETRIC_ACCESS_TRANSITION),
        (AnaState::NonOptimized, Status::SUCCESS),
        (AnaState::Inaccessible, Status::ASYMMETRIC_ACCESS_INACCESSIBLE),
        (AnaState::Optimized, Status::SUCCESS),
    ] {
        say(&mut host, &[rule(Some(HERE), Some(1), state)]);
        for opcode in [opcode::READ, opcode::WRITE, opcode::FLUSH, opcode::RESERVATION_REPORT] {
            assert_eq!(host.io(io(opcode, 0, 1, buffer)), expected, "{state:?}: {opcode:#x}");
        }
        let copy = SubmissionEntry { cdw12: 0, ..io(opcode::COPY, 8, 1, buffer) };
        assert_eq!(host.io(copy), expected, "{state:?}");
        let format = SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) };
        assert_eq!(host.admin(format).status(), expected, "{state:?}");
        let elsewhere = SubmissionEntry { nsid: 2, ..io(opcode::READ, 0, 1, buffer) };
        assert_eq!(host.io(elsewhere), Status::SUCCESS, "it is in another group");
    }
}

/// Uses a vendor specific command without a namespace, which belongs to the controller, and one for all
/// namespaces, which uses every path.
#[test]
fn what_names_no_namespace_takes_no_way_to_one() {
    let mut host = host(&Model::new(64));
    say(&mut host, &[rule(None, Some(1), AnaState::Inaccessible)]);
    let vendors = |nsid| SubmissionEntry { nsid, ..entry(0xc0) };
    for (nsid, expected) in [
        (0, Status::INVALID_OPCODE),
        (2, Status::INVALID_OPCODE),
        (1, Status::ASYMMETRIC_ACCESS_INACCESSIBLE),
        (NSID_ALL, Status::ASYMMETRIC_ACCESS_INACCESSIBLE),
    ] {
        assert_eq!(host.admin(vendors(nsid)).status(), expected, "{nsid:#x}");
    }
}
