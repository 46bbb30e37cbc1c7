//! States of ANA groups at ports, by which hosts choose their path to a drive.

use super::{Drives, Running};
use crate::state::{Access, Saved};
use sluice_controller::AnaRule;
use sluice_spec::error::ApiError;
use sluice_spec::{AnaSpec, AnaStateName, DriveSpec};

impl Drives {
    /// Sets the state of ANA groups, at one port or at all. It applies when this returns, and after a
    /// restart.
    pub fn set_ana(&self, name: &str, spec: AnaSpec) -> Result<Vec<AnaSpec>, ApiError> {
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        if entry.spec.controllers() < 2 {
            return Err(ApiError::conflict(format!("there is just one way to drive `{name}`"))
                .hint("declare more sockets (vfio_user), or serve it to hosts on the network (tcp)"));
        }
        let spec = spec.checked(&entry.spec)?;
        let running = entry.running.clone()?;
        let states = with(self.ana(name)?, spec);
        let note = |saved: &mut Saved| {
            saved.ana.retain(|access| access.drive != name);
            if !states.is_empty() {
                saved.ana.push(Access { drive: name.to_owned(), states: states.clone() });
            }
        };
        self.store_and_do(name, note, || running.set_ana(rules(&entry.spec, &states, &self.saved(), None)))?;
        tracing::info!("drive {name}: the states of its ANA groups are {}", in_words(&states));
        Ok(states)
    }

    /// Returns the states that were set, in that order. Of two about the same group and port the later
    /// applies.
    pub fn ana(&self, name: &str) -> Result<Vec<AnaSpec>, ApiError> {
        self.entry(name)?;
        Ok(of(name, &super::lock(&self.ana)))
    }
}

impl Drives {
    /// Shows hosts the state of a paused target, if they see it by ANA: the given one, or the stored ones alone. Commands
    /// that wait there end with the status of the state.
    pub(super) fn show_absence(
        &self,
        spec: &DriveSpec,
        running: &dyn Running,
        nsid: u32,
        state: Option<AnaStateName>,
    ) -> Result<(), ApiError> {
        if !spec.answers_by_ana() {
            return Ok(());
        }
        let changing = state.map(|state| (nsid, state));
        running.set_ana(rules(spec, &self.ana(&spec.name)?, &self.saved(), changing))?;
        match state {
            Some(state) => running.refuse_parked(nsid, state),
            None => Ok(()),
        }
    }
}

/// Formats states for the log.
fn in_words(states: &[AnaSpec]) -> String {
    let words: Vec<String> = states.iter().map(AnaSpec::to_string).collect();
    if words.is_empty() { AnaStateName::Optimized.to_string() } else { words.join(", then ") }
}

/// Returns the rules that apply when a drive is opened.
pub(super) fn stored_rules(spec: &DriveSpec, saved: &Saved) -> Vec<AnaRule> {
    rules(spec, &of(&spec.name, &saved.ana), saved, None)
}

/// Returns the rules of an operator, and after them those of paused targets, if hosts of the drive see these. `changing`
/// is the state of a target that is paused for a moment.
fn rules(
    spec: &DriveSpec,
    states: &[AnaSpec],
    saved: &Saved,
    changing: Option<(u32, AnaStateName)>,
) -> Vec<AnaRule> {
    let paused = saved.paused_targets.iter().filter(|paused| paused.drive == spec.name);
    let paused = paused.map(|paused| (paused.nsid, AnaStateName::Inaccessible));
    let absent = paused.chain(changing).filter(|_| spec.answers_by_ana());
    let absent = absent.filter_map(|(nsid, state)| {
        let group = spec.namespace(nsid)?.ana_group.unwrap_or(1);
        Some(AnaSpec { port: None, group: Some(group), state })
    });
    states.iter().cloned().chain(absent).map(|spec| spec.rule()).collect()
}

fn of(name: &str, all: &[Access]) -> Vec<AnaSpec> {
    all.iter().find(|access| access.drive == name).map_or_else(Vec::new, |access| access.states.clone())
}

/// Returns the states after another one is set. It replaces all states that it covers. Optimized is the
/// default, so the state is left out if no other remains.
fn with(mut states: Vec<AnaSpec>, spec: AnaSpec) -> Vec<AnaSpec> {
    states.retain(|before| !before.is_covered_by(&spec));
    if !states.is_empty() || spec.state != AnaStateName::Optimized {
        states.push(spec);
    }
    states
}

#[cfg(test)]
mod tests {
    use super::super::lock;
    use super::super::script::{Stage, spec};
    use super::*;
    use crate::state::PausedTarget;
    use sluice_spec::TcpSpec;
    use sluice_spec::error::Kind;

    fn word(port: Option<&str>, group: Option<u32>, state: AnaStateName) -> AnaSpec {
        AnaSpec { port: port.map(str::to_owned), group, state }
    }

    #[test]
    fn a_word_replaces_what_it_covers_and_nothing_else() {
        use AnaStateName::{Inaccessible, NonOptimized, Optimized};
        let a = word(Some("a"), None, Inaccessible);
        let b = word(Some("b"), Some(2), NonOptimized);
        let states = with(with(Vec::new(), a.clone()), b.clone());
        assert_eq!(states, [a.clone(), b.clone()]);
        let again = word(Some("a"), None, Optimized);
        assert_eq!(with(states.clone(), again.clone()), [b.clone(), again]);
        assert_eq!(with(states, word(None, None, Optimized)), []);
        assert_eq!(with(vec![b.clone()], word(Some("b"), None, Optimized)), []);
    }

    #[test]
    fn a_paused_target_is_after_all_other_rules_and_only_if_hosts_see_it() {
        let text = r#"{"name": "a", "absence": {"answer": "ana"}, "namespaces": [{"target": "null", "size": "1MiB",
                       "ana_group": 3}, {"target": "null", "size": "1MiB", "ana_group": 4}]}"#;
        let mut drive: DriveSpec = serde_json::from_str(text).expect("a drive");
        let paused = |drive: &str, nsid| PausedTarget { drive: drive.to_owned(), nsid, fail_after_s: None };
        let saved = Saved { paused_targets: vec![paused("a", 1), paused("b", 2)], ..Saved::default() };
        let said = word(None, None, AnaStateName::NonOptimized);
        let group = |group, state| word(None, Some(group), state).rule();
        let changing = Some((2, AnaStateName::Change));
        assert_eq!(
            rules(&drive, std::slice::from_ref(&said), &saved, changing),
            [said.rule(), group(3, AnaStateName::Inaccessible), group(4, AnaStateName::Change)]
        );
        drive.absence = None;
        assert_eq!(rules(&drive, std::slice::from_ref(&said), &saved, changing), [said.rule()]);
    }

    #[test]
    fn states_of_ana_groups_are_given_remembered_and_forgotten() {
        let stage = Stage::new();
        let drives = stage.start("");
        let said = |port: &str, state| AnaSpec { port: Some(port.to_owned()), group: None, state };
        let lost = said("[::ffff:10.0.0.1]:4420", AnaStateName::PersistentLoss);
        drives.create(spec("single")).expect("a free name");
        let problem = drives.set_ana("single", lost.clone()).expect_err("its one way stays open");
        assert_eq!(problem.error, "there is just one way to drive `single`");
        drives.create(DriveSpec { tcp: Some(TcpSpec::default()), ..spec("a") }).expect("a free name");
        let problem =
            drives.set_ana("a", said("vfio-user:1", AnaStateName::Change)).expect_err("no such port");
        assert_eq!(problem.kind, Kind::Invalid);
        let kept = said("10.0.0.1:4420", AnaStateName::PersistentLoss);
        assert_eq!(drives.set_ana("a", lost).expect("two ways"), std::slice::from_ref(&kept));
        assert_eq!(*lock(&stage.played("a").ana), [kept.rule()]);
        drop(drives);
        let drives = stage.start("");
        assert_eq!(*lock(&stage.played("a").ana), [kept.rule()]);
        assert_eq!(drives.ana("a").expect("it is there"), [kept]);
        drives.delete("a", false).expect("nobody uses it");
        drives.create(DriveSpec { tcp: Some(TcpSpec::default()), ..spec("a") }).expect("a free name");
        assert_eq!(drives.ana("a").expect("it is there"), []);
    }
}
