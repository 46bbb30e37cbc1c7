//! Selection of the runs of a cell that count, and groups of runs that belong together.
//!
//! A run in which the processors moved belongs to two machines and to neither. A run in which a thread was
//! kept from its processor means nothing. The other runs are grouped by the distance of the processors: a
//! mean over two distances would be the speed of a machine that does not exist.

use super::run::Run;
use serde::Serialize;

/// Maximum ratio of the longer to the shorter of the two round trips beside a run.
const MOVED: f64 = 1.5;

/// Maximum ratio of a round trip to the shortest one of its group.
const ALIKE: f64 = 1.6;

/// Runs that make a group of their own.
const ENOUGH: usize = 3;

/// The round trip of a cache line before and after a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    pub before_ns: f64,
    pub after_ns: f64,
}

impl Line {
    pub fn ns(self) -> f64 {
        f64::midpoint(self.before_ns, self.after_ns)
    }

    /// Returns whether the processors were somewhere else afterwards.
    pub fn moved(self) -> bool {
        self.before_ns.max(self.after_ns) > self.before_ns.min(self.after_ns) * MOVED
    }
}

/// Runs that do not count, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Runs in which the processors moved.
    pub moved: usize,
    /// Runs in which a thread was kept from its processor.
    pub disturbed: usize,
    /// Runs with too few others at the same distance.
    pub scattered: usize,
    /// Runs never made, because the processors did not have the required distance.
    pub absent: usize,
}

impl LeftOut {
    /// Describes the runs left out; `None` if every run counts.
    pub fn words(&self) -> Option<String> {
        let reasons = [
            (self.moved, "in which the processors moved"),
            (self.disturbed, "disturbed"),
            (self.scattered, "with too few like it"),
            (self.absent, "never made, the processors being elsewhere"),
        ];
        let words: Vec<String> = reasons
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, reason)| format!("{count} {reason}"))
            .collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// Runs of a cell, sorted into groups.
#[derive(Debug, Default)]
pub struct Groups {
    /// Groups by their distance, the shortest first; each has at least one run.
    pub groups: Vec<Vec<Run>>,
    pub left_out: LeftOut,
    /// Warning that runs count which should not, because there are no others.
    pub warning: Option<String>,
}

impl Groups {
    /// Sorts runs at full speed; `absent` further runs were never made.
    pub fn sort_out(mut runs: Vec<Run>, absent: usize) -> Self {
        let mut left_out = LeftOut { absent, ..LeftOut::default() };
        let mut warnings = Vec::new();
        match keep(&mut runs, |run| !run.line.is_some_and(Line::moved)) {
            Some(moved) => left_out.moved = moved,
            None => warnings.push("the processors moved in every run".to_owned()),
        }
        match keep(&mut runs, Run::had_cores) {
            Some(disturbed) => left_out.disturbed = disturbed,
            None => warnings.push(disturbance(&runs)),
        }
        let mut groups = by_distance(runs);
        left_out.scattered = drop_small(&mut groups);
        let warning = (!warnings.is_empty()).then(|| warnings.join("; "));
        Self { groups, left_out, warning }
    }

    /// Puts all runs in one group, for a load to which distances do not matter.
    pub fn one(runs: Vec<Run>) -> Self {
        Self { groups: vec![runs], ..Self::default() }
    }
}

/// Keeps the good runs and returns the number of others. Returns `None`, and keeps all runs, if none is good.
fn keep(runs: &mut Vec<Run>, good: impl Fn(&Run) -> bool) -> Option<usize> {
    let before = runs.len();
    if before > 0 && !runs.iter().any(&good) {
        return None;
    }
    runs.retain(good);
    Some(before - runs.len())
}

fn disturbance(runs: &[Run]) -> String {
    let least = |of: fn(&Run) -> Option<f64>| runs.iter().filter_map(of).reduce(f64::min);
    let shares = [
        ("reactor", least(Run::reactor_share)),
        ("host", least(Run::host_share)),
        ("floor", least(|run| Some(run.floor?.core_share))),
    ];
    let words = shares.into_iter().filter_map(|(whose, share)| {
        Some(format!("the {whose} had {:.0} % of its core", share?.min(1.0) * 100.0))
    });
    format!("disturbed: {}", words.collect::<Vec<_>>().join(", "))
}

/// Groups runs by distance. Runs without a known distance have the distance zero.
fn by_distance(mut runs: Vec<Run>) -> Vec<Vec<Run>> {
    let ns = |run: &Run| run.line.map_or(0.0, Line::ns);
    runs.sort_by(|a, b| ns(a).total_cmp(&ns(b)));
    let mut groups: Vec<Vec<Run>> = Vec::new();
    for run in runs {
        match groups.last_mut() {
            Some(group) if ns(&run) <= ns(&group[0]) * ALIKE => group.push(run),
            _ => groups.push(vec![run]),
        }
    }
    groups
}

/// Drops groups that are too small, but not the largest. Returns the number of their runs.
fn drop_small(groups: &mut Vec<Vec<Run>>) -> usize {
    let largest = groups.iter().map(Vec::len).max().unwrap_or(0);
    let enough = ENOUGH.min(largest);
    let count = |groups: &[Vec<Run>]| groups.iter().map(Vec::len).sum::<usize>();
    let before = count(groups);
    groups.retain(|group| group.len() >= enough);
    if largest < ENOUGH {
        groups.truncate(1);
    }
    before - count(groups)
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::run;
    use super::*;

    /// Returns runs with these round trips before and after.
    fn runs(lines: &[(f64, f64)]) -> Vec<Run> {
        let at = |&(before_ns, after_ns)| run(100, 400.0, 1.0).at(Some(Line { before_ns, after_ns }));
        lines.iter().map(at).collect()
    }

    fn still(ns: &[f64]) -> Vec<Run> {
        runs(&ns.iter().map(|&ns| (ns, ns)).collect::<Vec<_>>())
    }

    /// Returns the distances of each group.
    fn distances(groups: &Groups) -> Vec<Vec<f64>> {
        let ns = |run: &Run| run.line.expect("it was probed").ns();
        groups.groups.iter().map(|group| group.iter().map(ns).collect()).collect()
    }

    #[test]
    fn a_run_in_which_the_processors_moved_does_not_count() {
        let groups = Groups::sort_out(runs(&[(110.0, 380.0), (380.0, 110.0), (100.0, 150.0)]), 0);
        assert_eq!(distances(&groups), [[125.0]]);
        assert_eq!(groups.left_out, LeftOut { moved: 2, ..LeftOut::default() });
        assert_eq!(groups.warning, None);
    }

    #[test]
    fn if_they_moved_in_all_of_them_it_says_so() {
        let groups = Groups::sort_out(runs(&[(110.0, 380.0)]), 0);
        assert_eq!((distances(&groups).len(), groups.left_out), (1, LeftOut::default()));
        assert_eq!(groups.warning.as_deref(), Some("the processors moved in every run"));
    }

    #[test]
    fn runs_are_grouped_by_the_distance_of_the_processors() {
        let distance = [380.0, 100.0, 900.0, 160.0, 390.0, 161.0, 110.0, 950.0, 400.0, 930.0];
        let groups = Groups::sort_out(still(&distance), 0);
        // 161 is more than 1.6 times the shortest, and alone.
        assert_eq!(distances(&groups), [[100.0, 110.0, 160.0], [380.0, 390.0, 400.0], [900.0, 930.0, 950.0]]);
        assert_eq!(groups.left_out, LeftOut { scattered: 1, ..LeftOut::default() });
    }

    #[test]
    fn among_small_groups_the_largest_counts() {
        let groups = Groups::sort_out(still(&[110.0, 380.0, 385.0, 900.0, 905.0]), 1);
        assert_eq!(distances(&groups), [[380.0, 385.0]]);
        assert_eq!(groups.left_out, LeftOut { scattered: 3, absent: 1, ..LeftOut::default() });
        assert_eq!(distances(&Groups::sort_out(still(&[110.0]), 0)), [[110.0]]);
    }

    #[test]
    fn nothing_makes_no_group() {
        let groups = Groups::sort_out(Vec::new(), 25);
        assert!(groups.groups.is_empty() && groups.warning.is_none());
        let words = "25 never made, the processors being elsewhere";
        assert_eq!(groups.left_out.words().as_deref(), Some(words));
    }

    #[test]
    fn runs_without_a_probe_are_together() {
        let groups = Groups::sort_out(vec![run(1, 4.0, 1.0), run(2, 4.0, 1.0)], 0);
        assert_eq!((groups.groups.len(), groups.left_out.words()), (1, None));
    }

    #[test]
    fn disturbed_runs_do_not_count_beside_others() {
        let groups = Groups::sort_out(vec![run(900, 400.0, 0.5), run(100, 400.0, 1.0)], 0);
        assert_eq!((groups.groups[0].len(), groups.left_out.disturbed, groups.warning), (1, 1, None));
        let groups = Groups::sort_out(vec![run(900, 400.0, 0.5), run(900, 400.0, 0.25)], 0);
        assert_eq!((groups.groups[0].len(), groups.left_out.disturbed), (2, 0));
        let words = "disturbed: the host had 25 % of its core, the floor had 100 % of its core";
        assert_eq!(groups.warning.as_deref(), Some(words));
    }

    #[test]
    fn what_is_left_out_is_said_in_words() {
        let left_out = LeftOut { moved: 2, disturbed: 1, scattered: 0, absent: 0 };
        assert_eq!(left_out.words().as_deref(), Some("2 in which the processors moved, 1 disturbed"));
    }
}
