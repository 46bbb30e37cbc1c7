//! Calls of a drive that reach its layers.

use super::subsystem;
use crate::model::Subsystem;
use crate::model::namespace::{Namespace, NamespaceConfig};
use sluice_command::{Characteristics, Command, Lane, Layer, NodeId, Origin, StackBuilder, Ticket};
use sluice_memory::{Removed, Space};
use sluice_nvme::Status;
use sluice_router::RouterBuilder;
use std::sync::{Arc, Mutex, MutexGuard};

/// State of a layer, and the calls of it.
#[derive(Debug, Default)]
struct State {
    calls: Vec<String>,
    polls: bool,
    found: usize,
    has_work: bool,
    maps: bool,
    revoked: bool,
    deadline_ns: Option<u64>,
}

/// Layer that notes its calls.
#[derive(Clone, Debug, Default)]
struct Noted(Arc<Mutex<State>>);

impl Noted {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }

    fn note(&self, call: String) {
        self.state().calls.push(call);
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls)
    }
}

impl Layer for Noted {
    fn name(&self) -> &'static str {
        "noted"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(64 << 10, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::SUCCESS);
    }

    fn event(&mut self, ticket: Ticket, result: i32, _lane: &mut Lane<'_>) {
        self.note(format!("event {} {result}", ticket.0));
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.state().deadline_ns
    }

    fn expire(&mut self, _lane: &mut Lane<'_>) {
        self.note("expire".to_owned());
    }

    fn polls(&self) -> bool {
        self.state().polls
    }

    fn poll(&mut self, controller: u8, _space: &Space, _lane: &mut Lane<'_>) -> usize {
        self.note(format!("poll {controller}"));
        self.state().found
    }

    fn arm(&mut self) -> bool {
        self.note("arm".to_owned());
        self.state().has_work
    }

    fn disarm(&mut self) {
        self.note("disarm".to_owned());
    }

    fn forget_memory(&mut self, _removed: &Removed) {
        self.note("forget".to_owned());
    }

    fn still_maps(&self, _removed: &Removed) -> bool {
        self.state().maps
    }

    fn revoke(&mut self, controller: u8) {
        self.note(format!("revoke {controller}"));
    }

    fn is_revoked(&self, controller: u8) -> bool {
        self.state().revoked || controller != 4
    }

    fn renew(&mut self, controller: u8) {
        self.note(format!("renew {controller}"));
    }
}

/// Returns a drive with these layers, each in a namespace of its own, from NSID 1 on.
fn drive(layers: &[Noted]) -> Subsystem {
    let namespaces = (1..).zip(layers).map(|(nsid, layer)| {
        let stack = sluice_command::Stack::of(Box::new(layer.clone()));
        let config = NamespaceConfig { nsid, block_size: 512, uuid: [nsid as u8; 16] };
        Namespace::new(config, RouterBuilder::new(stack).build()).expect("a namespace")
    });
    subsystem(namespaces.collect())
}

fn noted(count: usize) -> Vec<Noted> {
    (0..count).map(|_| Noted::default()).collect()
}

#[test]
fn a_result_goes_to_the_layer_that_its_token_names() {
    let layers = noted(4);
    let mut drive = drive(&layers[..2]);
    let mut stack = StackBuilder::new();
    let below = stack.add(Box::new(layers[2].clone()), &[]).expect("a layer");
    stack.add(Box::new(layers[3].clone()), &[below]).expect("a layer");
    let config = NamespaceConfig { nsid: 128, block_size: 512, uuid: [9; 16] };
    let router = RouterBuilder::new(stack.build()).build();
    drive.put(Namespace::new(config, router).expect("a namespace"));
    let places = [(1, 0), (2, 0), (128, 0), (128, 1)];
    for (layer, (nsid, node)) in layers.iter().zip(places) {
        let ticket = 0xfedc_ba98;
        drive.event(Subsystem::token_prefix(nsid, NodeId(node)) | ticket, -7, 3);
        assert_eq!(layer.calls(), [format!("event {ticket} -7")]);
        assert!(layers.iter().all(|other| other.calls().is_empty()));
        assert!(drive.has_completions());
    }
    drive.event(Subsystem::token_prefix(77, NodeId(0)), -7, 3);
    assert!(layers.iter().all(|other| other.calls().is_empty()), "there is no such namespace");
}

/// Checks that all layers are polled, armed and disarmed, also behind a layer that has work.
#[test]
fn layers_that_poll_are_polled_and_armed() {
    let space = Space::new();
    let layers = noted(3);
    let mut plain = drive(&layers);
    layers[0].state().has_work = true;
    assert!(!plain.shares_memory() && !plain.arm());
    plain.disarm();
    assert!(layers.iter().all(|layer| layer.calls().is_empty()), "no layer polls");
    layers.iter().for_each(|layer| layer.state().polls = true);
    let mut drive = drive(&layers);
    assert!(drive.shares_memory());
    for (found, work) in [([0, 0, 0], 0), ([2, 0, 3], 5), ([0, 1, 0], 1)] {
        layers.iter().zip(found).for_each(|(layer, found)| layer.state().found = found);
        assert_eq!(drive.poll(Origin::SUBSYSTEM, &space, 5), work);
        assert_eq!(drive.has_completions(), work > 0);
        drive.run_completions(5);
        assert!(layers.iter().all(|layer| layer.calls() == ["poll 255"]));
    }
    for bits in 0..8 {
        let works = [0, 1, 2].map(|layer| bits >> layer & 1 == 1);
        layers.iter().zip(works).for_each(|(layer, works)| layer.state().has_work = works);
        assert_eq!(drive.arm(), bits != 0, "{bits:03b}");
        drive.disarm();
        assert!(layers.iter().all(|layer| layer.calls() == ["arm", "disarm"]), "{bits:03b}");
    }
}

/// Checks that no layer keeps memory of a host that has removed it, or is gone.
#[test]
fn layers_give_up_memory_of_hosts() {
    let layers = noted(3);
    layers.iter().for_each(|layer| layer.state().polls = true);
    let mut drive = drive(&layers);
    let removed = Space::new().unmap_all();
    drive.forget_memory(&removed);
    drive.recall(4);
    drive.renew(5);
    assert!(layers.iter().all(|layer| layer.calls() == ["forget", "revoke 4", "renew 5"]));
    for bits in 0..8 {
        for (index, layer) in layers.iter().enumerate() {
            let mut state = layer.state();
            (state.maps, state.revoked) = (bits >> index & 1 == 1, bits >> index & 1 == 1);
        }
        assert_eq!((drive.lends(&removed), drive.is_recalled(4)), (bits != 0, bits == 7), "{bits:03b}");
        assert!(drive.is_recalled(6));
    }
}

/// Checks that a turn expires four namespaces, and the next one goes on behind them.
#[test]
fn a_turn_expires_the_layers_of_some_namespaces() {
    let layers = noted(6);
    let mut drive = drive(&layers);
    layers.iter().for_each(|layer| layer.state().deadline_ns = Some(6));
    layers[1].state().deadline_ns = Some(7);
    let mut expired = |now_ns| {
        drive.expire_layers(now_ns);
        layers.iter().map(|layer| layer.calls().len()).collect::<Vec<_>>()
    };
    assert_eq!(expired(5), [0; 6]);
    assert_eq!(expired(6), [1, 0, 1, 1, 1, 0]);
    assert_eq!(expired(6), [1, 0, 1, 1, 0, 1]);
    assert_eq!(expired(7), [1, 1, 0, 0, 1, 1]);
    layers[2..].iter().for_each(|layer| layer.state().deadline_ns = None);
    assert_eq!(expired(7), [1, 1, 0, 0, 0, 0]);
}
