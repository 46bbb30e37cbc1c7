//! Random commands of Namespace Management and Attachment against a model.

use super::{POOL, attach, capacities, create, deletion, list, pair, read, run, wanted};
use crate::hostile::Random;
use sluice_nvme::{Cns, Status};
use std::collections::{BTreeMap, BTreeSet};

/// Model of a table of namespaces, as simple as possible.
#[derive(Default)]
struct Table(BTreeMap<u32, (u64, bool, BTreeSet<u16>)>);

impl Table {
    fn create(&mut self, blocks: u64, shared: bool) -> Result<u32, Status> {
        let taken: u64 = self.0.values().map(|(blocks, ..)| blocks).sum();
        let nsid = (2..).find(|nsid| !self.0.contains_key(nsid)).expect("a free one");
        if blocks > POOL / 512 - taken {
            return Err(Status::NAMESPACE_INSUFFICIENT_CAPACITY);
        }
        self.0.insert(nsid, (blocks, shared, BTreeSet::new()));
        Ok(nsid)
    }

    fn attach(&mut self, nsid: u32, cntlids: &[u16], attach: bool) -> Status {
        let Some((_, shared, has)) = self.0.get_mut(&nsid) else { return Status::INVALID_FIELD };
        match (attach, cntlids.iter().any(|it| has.contains(it) == attach)) {
            (true, true) => return Status::NAMESPACE_ALREADY_ATTACHED,
            (false, true) => return Status::NAMESPACE_NOT_ATTACHED,
            (true, false) if !*shared && has.len() + cntlids.len() > 1 => {
                return Status::NAMESPACE_IS_PRIVATE;
            }
            _ => {}
        }
        for cntlid in cntlids {
            if attach {
                has.insert(*cntlid)
            } else {
                has.remove(cntlid)
            };
        }
        Status::SUCCESS
    }
}

#[test]
fn namespaces_are_what_hosts_made_of_them() {
    let (mut pair, daemon) = pair();
    let (mut table, mut random) = (Table::default(), Random(7));
    for step in 0..600 {
        let nsid = 2 + random.below(6) as u32;
        let cntlids: &[u16] = [&[1][..], &[2], &[1, 2]][random.below(3) as usize];
        match random.below(5) {
            0 => {
                let (blocks, shared) = (1 + random.below(40), random.below(3) > 0);
                let mut data = wanted(blocks);
                data.nmic = u8::from(shared);
                let made = create(&mut pair, &daemon, &data);
                assert_eq!(made, table.create(blocks, shared), "step {step}");
            }
            1 => {
                let expected = table.0.remove(&nsid).map_or(Status::INVALID_FIELD, |_| Status::SUCCESS);
                assert_eq!(run(&mut pair, &daemon, 0, deletion(nsid)).0, expected, "step {step}");
            }
            it => {
                let done = attach(&mut pair, &daemon, nsid, cntlids, it > 2);
                assert_eq!(done, table.attach(nsid, cntlids, it > 2), "step {step}");
            }
        }
        let taken: u64 = table.0.values().map(|(blocks, ..)| blocks * 512).sum();
        for number in 0..2 {
            let host = pair.host(number);
            host.reuse_memory();
            assert_eq!(capacities(host).1, POOL - taken, "step {step}");
            assert_eq!(
                list(host, Cns::ALLOCATED_NAMESPACES)[1..],
                table.0.keys().copied().collect::<Vec<_>>()
            );
            let has = |(nsid, it): (&u32, &(u64, bool, BTreeSet<u16>))| {
                it.2.contains(&(number as u16 + 1)).then_some(*nsid)
            };
            let active: Vec<u32> = table.0.iter().filter_map(has).collect();
            assert_eq!(list(host, Cns::ACTIVE_NAMESPACES)[1..], active, "step {step}");
            let expected = if active.contains(&nsid) { Status::SUCCESS } else { Status::INVALID_FIELD };
            assert_eq!(read(host, nsid), expected, "step {step}");
        }
    }
}
