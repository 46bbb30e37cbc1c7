//! Mailboxes, paths and namespaces of several controllers.

use crate::state::ana::{Ana, AnaRule, Paths, bit};
use crate::state::limits::{ANA_GROUPS_MAX, CONTROLLERS_MAX};
use crate::state::mailbox::{Mailboxes, Notice};
use crate::state::management::Creation;
use crate::state::reservation::HostId;
use crate::state::reservation::notification::Notification;
use crate::state::unmapped_queues;
use sluice_command::{Limits, Origin, Slab};
use sluice_nvme::{AnaState, Status, SubmissionEntry};

#[test]
fn controllers_have_numbers_and_mailboxes_of_their_own() {
    let mut slab = Slab::new(Limits::new(4, 0)).expect("memory");
    let mut admit = |cid| {
        let entry = SubmissionEntry { cid, ..SubmissionEntry::default() };
        slab.admit(&entry, Origin { cid, ..Origin::LAYER }).expect("room")
    };
    let mut mailboxes = Mailboxes::default();
    let numbers: Vec<_> = (0..CONTROLLERS_MAX as u16 + 2).map(|it| mailboxes.add(100 + it)).collect();
    let expected = (0..CONTROLLERS_MAX as u8).map(Some).chain([None, None]);
    assert!(numbers.into_iter().eq(expected));
    assert_eq!((mailboxes.count(), mailboxes.are_empty()), (CONTROLLERS_MAX, true));
    mailboxes.remove(5);
    mailboxes.remove(9);
    mailboxes.set_present(7, false);
    mailboxes.set_present(5, true);
    assert_eq!(mailboxes.count(), CONTROLLERS_MAX - 2);
    let seen: Vec<_> = mailboxes.present().collect();
    let all = (0..CONTROLLERS_MAX as u8).filter(|it| ![5, 7, 9].contains(it));
    assert!(seen.iter().copied().eq(all.clone().map(|it| (it, 100 + u16::from(it)))));
    assert!(mailboxes.present_numbers().into_iter().eq(all));
    mailboxes.set_present(7, true);
    assert_eq!((mailboxes.add(500), mailboxes.present().nth(5)), (Some(5), Some((5, 500))));
    // Notices and commands.
    mailboxes.notify(3, Notice::Reset);
    mailboxes.notify(3, Notice::Deleted(2));
    mailboxes.notify(3, Notice::Reset);
    mailboxes.notify(9, Notice::Reset);
    mailboxes.notify(u8::MAX, Notice::Reset);
    mailboxes.put(4, admit(1));
    mailboxes.put(4, admit(2));
    assert_eq!([3, 4, 5, 9].map(|number| mailboxes.has_mail(number)), [true, true, false, false]);
    assert!(!mailboxes.are_empty());
    let mut done = vec![admit(3)];
    assert_eq!(mailboxes.take(3, &mut done), [Notice::Reset, Notice::Deleted(2)]);
    assert_eq!(mailboxes.take(3, &mut done), []);
    assert_eq!(mailboxes.take(31, &mut done), []);
    assert_eq!((mailboxes.has_mail(3), mailboxes.has_mail(4), done.len()), (false, true, 1));
    assert_eq!(mailboxes.take(4, &mut done), []);
    let cids: Vec<_> = done.iter().map(|command| slab.slot(command).origin.cid).collect();
    assert_eq!((cids, mailboxes.are_empty()), (vec![3, 1, 2], true));
    let last = done.pop().expect("three");
    mailboxes.put(6, last);
    done.extend(mailboxes.drain());
    assert_eq!(done.len(), 3);
    done.into_iter().for_each(|command| slab.release(command));
    mailboxes.announce(Notice::Sanitized);
    assert!((0..CONTROLLERS_MAX as u8).all(|number| mailboxes.has_mail(number) == (number != 9)));
    mailboxes.remove(6);
    assert!(!mailboxes.has_mail(6) && mailboxes.has_mail(7));
}

/// Notices of reservations are bounded, and others are not lost for them.
#[test]
fn the_oldest_notice_of_a_reservation_goes_first() {
    let mut mailboxes = Mailboxes::default();
    mailboxes.add(1);
    let notice = |nsid| Notice::Reservation {
        host: HostId::Unnamed(0),
        nsid,
        notification: Notification::ReservationReleased,
    };
    (0..64).for_each(|nsid| mailboxes.notify(0, notice(nsid)));
    mailboxes.notify(0, Notice::Sanitizing);
    mailboxes.notify(0, notice(5));
    mailboxes.notify(0, notice(64));
    let found = mailboxes.take(0, &mut Vec::new());
    let expected = (1..64).map(notice).chain([Notice::Sanitizing, notice(64)]);
    assert_eq!(found, expected.collect::<Vec<_>>());
}

fn rule(port: Option<&str>, group: Option<u32>, state: AnaState) -> AnaRule {
    AnaRule { port: port.map(str::to_owned), group, state }
}

/// Conformance: Base 8.1, the states of groups follow the last rule of their port, and each change is counted.
#[test]
fn the_last_rule_for_a_port_and_a_group_counts() {
    let rules = [
        rule(None, None, AnaState::NonOptimized),
        rule(Some("a"), None, AnaState::Inaccessible),
        rule(None, Some(2), AnaState::PersistentLoss),
        rule(Some("a"), Some(32), AnaState::Change),
    ];
    let mut ana = Ana::default();
    for port in ["a", "b"] {
        ana.paths.push(Paths { port: port.into(), ..Paths::default() });
    }
    let all = u32::MAX;
    assert!(!ana.paths[0].update(&[], all), "all are optimized before and after");
    assert!(ana.paths[0].update(&rules, all) && ana.paths[1].update(&rules, all));
    assert!(!ana.paths[0].update(&rules, all));
    let statuses = |ana: &Ana, number| [1, 2, 31, 32].map(|group| ana.check(number, group).err());
    let inaccessible = Some(Status::ASYMMETRIC_ACCESS_INACCESSIBLE);
    let (loss, change) =
        (Some(Status::ASYMMETRIC_ACCESS_PERSISTENT_LOSS), Some(Status::ASYMMETRIC_ACCESS_TRANSITION));
    assert_eq!(statuses(&ana, 0), [inaccessible, loss, inaccessible, change]);
    assert_eq!(statuses(&ana, 1), [None, loss, None, None]);
    assert_eq!(statuses(&ana, 2), [None; 4], "a controller without paths");
    assert_eq!((ana.paths[0].refuses(), ana.paths[1].refuses()), (u32::MAX, 2));
    assert_eq!((bit(1), bit(2), bit(32)), (1, 2, 1 << 31));
    // Another state of group 2, which is not used, and one of group 1, which is.
    let counts = |ana: &Ana| ana.paths[1].changes;
    assert_eq!(counts(&ana), 1);
    let other = [rule(None, None, AnaState::NonOptimized), rule(None, Some(2), AnaState::Change)];
    assert!(!ana.paths[1].update(&other, all & !bit(2)));
    assert_eq!((counts(&ana), ana.check(1, 2)), (1, Err(Status::ASYMMETRIC_ACCESS_TRANSITION)));
    assert!(ana.paths[1].update(&[rule(None, Some(1), AnaState::Optimized)], bit(1)));
    assert_eq!(counts(&ana), 2);
    // The log page: 16 bytes, and 32 for each group with its NSIDs.
    let namespaces = [(3, 1), (4, 2), (9, 1)];
    let page = ana.log(1, namespaces.into_iter(), false);
    let dwords: Vec<u32> =
        page.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("4 bytes"))).collect();
    let expected = [&[2, 0, 2, 0][..], &[1, 2, 2, 0, 1, 0, 0, 0, 3, 9], &[2, 1, 1, 0, 1, 0, 0, 0, 4]];
    assert_eq!(dwords, expected.concat());
    let short = ana.log(1, namespaces.into_iter(), true);
    assert_eq!((short.len(), short[20], short[52]), (16 + 2 * 32, 0, 0));
    assert_eq!(ana.log(5, [(1, ANA_GROUPS_MAX)].into_iter(), true)[16..20], [32, 0, 0, 0]);
    ana.reset(1);
    ana.reset(7);
    assert_eq!((counts(&ana), ana.paths[0].changes), (0, 1));
    let page = ana.log(1, namespaces.into_iter(), true);
    assert_eq!((&page[..8], &page[24..32]), (&[0; 8][..], &[0; 8][..]));
}

#[test]
fn sizes_and_times() {
    let creation = Creation { nsid: 1, block_size: 4096, blocks: 3 << 30, shared: false, ana_group: 1 };
    assert_eq!(creation.bytes(), 3 << 42);
    assert_eq!((unmapped_queues::FATAL_AFTER_NS, unmapped_queues::CHECK_NS), (1_000_000_000, 100_000_000));
    assert_eq!(super::super::limits::TRANSFER_MAX, 1 << 20);
    assert_eq!(super::super::client_dma::DMA_TIMEOUT_NS, 30_000_000_000);
    assert_eq!(super::super::client_dma::pool::POOL_BYTES, 16 << 20);
    assert_eq!(super::super::persistent_event::PERSISTENT_EVENT_LOG_BYTES, 65_536);
}
