//! The line of one class of commands: credit while a limit is not reached, and commands that wait.

use super::LAPSE_NS;
use super::bucket::{Ahead, Amounts, Budget, COMMAND, PLACES, Rates, Slots, due_ns};
use super::group::Member;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Credit for a kind of units without a limit.
const UNLIMITED: u64 = u64::MAX / 2;

/// Part of a burst that is claimed in advance.
const CREDIT_OF_BURST: u64 = 4;

/// Most time for which units of a late turn still count.
const LATE_MAX_NS: u64 = 100_000_000;

/// The budgets of a layer, with their rates as they were read last.
#[derive(Debug)]
pub(super) struct Views {
    member: Arc<Member>,
    rates: AllRates,
}

/// Rates of the own budget, of the group's, and of the guarantee.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AllRates {
    own: Rates,
    group: Rates,
    guarantee: Rates,
}

/// A claim in the own budget and in the group's, for one or several commands.
#[derive(Clone, Copy, Debug)]
struct Claim {
    amounts: Amounts,
    own: Slots,
    group: Slots,
}

impl Claim {
    /// Takes the amounts of the first command out of the claim.
    fn pass_first(&mut self, amounts: Amounts) {
        for slots in [&mut self.own, &mut self.group] {
            slots.iter_mut().enumerate().for_each(|(number, slot)| *slot += amounts[number % 2]);
        }
        self.amounts = [0, 1].map(|kind| self.amounts[kind].saturating_sub(amounts[kind]));
    }
}

impl Views {
    pub(super) fn new(member: Arc<Member>) -> Self {
        Self { member, rates: AllRates::default() }
    }

    /// Reads all rates; none while some are written.
    pub(super) fn read(&self) -> Option<AllRates> {
        let group = self.member.group.as_ref().map_or(Some(Rates::default()), |group| group.read())?;
        Some(AllRates { own: self.member.own.read()?, group, guarantee: self.member.guarantee.read()? })
    }

    pub(super) fn replace(&mut self, rates: AllRates) {
        self.rates = rates;
    }

    /// Returns the time for which claims are made, common to all users of the budget.
    fn ahead(&self) -> &Ahead {
        self.member.group.as_ref().map_or(&self.member.own.ahead, |group| &group.ahead)
    }

    fn budgets(&self) -> impl Iterator<Item = (&Budget, &Rates)> {
        let group = self.member.group.as_deref().map(|group| (group, &self.rates.group));
        std::iter::once((&self.member.own, &self.rates.own)).chain(group)
    }

    fn claim(&self, class: usize, amounts: Amounts, since_ns: u64) -> Claim {
        let own = self.member.own.claim(&self.rates.own, class, amounts, since_ns);
        let group =
            self.member.group.as_ref().map(|group| group.claim(&self.rates.group, class, amounts, since_ns));
        Claim { amounts, own, group: group.unwrap_or_default() }
    }

    fn unclaim(&self, class: usize, amounts: Amounts) {
        self.budgets().for_each(|(budget, rates)| budget.unclaim(rates, class, amounts));
    }

    /// Returns the time at which a claim is due. A guarantee of the same kind comes before the group's line.
    fn due_ns(&self, class: usize, claim: &Claim, now_ns: u64) -> u64 {
        let own = due_ns(&self.rates.own, class, claim.own);
        let mut group = due_ns(&self.rates.group, class, claim.group);
        let guarantee = &self.rates.guarantee;
        let next = self.member.guarantee.next(guarantee, class, now_ns);
        let guaranteed = due_ns(guarantee, class, next);
        for kind in 0..2 {
            if is_limited(guarantee, class, kind) {
                group[kind] = group[kind].min(guaranteed[kind]);
            }
        }
        own.into_iter().chain(group).max().unwrap_or(0)
    }

    /// Charges the guarantee for units that were used.
    fn charge(&self, class: usize, amounts: Amounts, now_ns: u64) {
        self.member.guarantee.charge(&self.rates.guarantee, class, amounts, now_ns);
    }

    /// Returns the amounts that a command may claim: more than it needs where these have come and are saved up.
    fn with_credit(&self, class: usize, need: Amounts, now_ns: u64) -> Amounts {
        let mut most = [u64::MAX; 2];
        for (budget, rates) in self.budgets() {
            let next = budget.next(rates, class, now_ns);
            for (number, (&place, slot)) in PLACES[class].iter().zip(next).enumerate() {
                let rate = &rates[place];
                if rate.is_limit() {
                    let come = rate.earned(now_ns).saturating_sub(slot).min(rate.burst / CREDIT_OF_BURST);
                    most[number % 2] = come.min(most[number % 2]);
                }
            }
        }
        let of = |kind: usize| if most[kind] == u64::MAX { need[kind] } else { need[kind].max(most[kind]) };
        [of(0), of(1)]
    }

    /// Returns the units that come in a time, at the lowest rate of each kind.
    fn come_in(&self, class: usize, time_ns: u64) -> Amounts {
        let mut least = [u64::MAX; 2];
        for (_, rates) in self.budgets() {
            for (number, &place) in PLACES[class].iter().enumerate() {
                if rates[place].is_limit() {
                    least[number % 2] = rates[place].come_in(time_ns).min(least[number % 2]);
                }
            }
        }
        least
    }

    fn is_limited(&self, class: usize, kind: usize) -> bool {
        self.budgets().any(|(_, rates)| is_limited(rates, class, kind))
    }
}

fn is_limited(rates: &Rates, class: usize, kind: usize) -> bool {
    PLACES[class].iter().skip(kind).step_by(2).any(|&place| rates[place].is_limit())
}

/// A command that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) ticket: u32,
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Line {
    /// Amounts that are claimed and unused. None while commands wait.
    credit: Amounts,
    class: usize,
    waiting: VecDeque<Waiting>,
    /// Claim of the first waiting commands, and the time at which the first one is due.
    first: Option<(Claim, u64)>,
    /// Time at which the last command was due.
    last_due_ns: u64,
    lapse_ns: u64,
}

impl Line {
    pub(super) fn new(class: usize, held_max: usize) -> Self {
        let waiting = VecDeque::with_capacity(held_max);
        Self { credit: [0; 2], class, waiting, first: None, last_due_ns: 0, lapse_ns: u64::MAX }
    }

    /// Pays a command with credit; returns whether there was enough.
    #[inline]
    pub(super) fn spend(&mut self, bytes: u64) -> bool {
        let [commands, of_bytes] = &mut self.credit;
        let is_enough = *commands >= COMMAND && *of_bytes >= bytes;
        if is_enough {
            *commands -= COMMAND;
            *of_bytes -= bytes;
        }
        is_enough
    }

    pub(super) fn due_ns(&self) -> Option<u64> {
        self.first.map(|(_, due_ns)| due_ns)
    }

    pub(super) fn lapse_ns(&self) -> u64 {
        self.lapse_ns
    }

    /// Returns whether other users may lack the credit.
    pub(super) fn has_credit(&self, views: &Views) -> bool {
        (0..2).any(|kind| self.credit[kind] > 0 && views.is_limited(self.class, kind))
    }

    /// Claims units for a command that has come; returns whether it may pass. Otherwise it is to be
    /// [pushed](Self::push).
    pub(super) fn admit(&mut self, views: &Views, bytes: u64, now_ns: u64) -> bool {
        if !self.waiting.is_empty() {
            return false;
        }
        self.give_back(views);
        let need = [COMMAND, bytes];
        let amounts = views.with_credit(self.class, need, now_ns);
        let claim = views.claim(self.class, amounts, now_ns);
        let more = [amounts[0] - need[0], amounts[1] - need[1]];
        let due_ns = views.due_ns(self.class, &claim, now_ns);
        if due_ns > now_ns {
            views.unclaim(self.class, more);
            self.first = Some((Claim { amounts: need, ..claim }, due_ns));
            return false;
        }
        views.charge(self.class, amounts, now_ns);
        self.last_due_ns = now_ns;
        let credit = |kind: usize| if views.is_limited(self.class, kind) { more[kind] } else { UNLIMITED };
        self.credit = [credit(0), credit(1)];
        self.lapse_ns = now_ns.saturating_add(LAPSE_NS);
        true
    }

    pub(super) fn push(&mut self, views: &Views, waiting: Waiting) {
        self.waiting.push_back(waiting);
        views.member.waiting.fetch_add(1, Ordering::Relaxed);
        views.member.waited.fetch_add(1, Ordering::Relaxed);
    }

    /// Claims for the first waiting commands, if they have no claim.
    pub(super) fn claim_first(&mut self, views: &Views, now_ns: u64) {
        if self.first.is_some() || self.waiting.is_empty() {
            return;
        }
        let most = views.come_in(self.class, views.ahead().ns(now_ns));
        let mut amounts = [0; 2];
        for Waiting { bytes, .. } in &self.waiting {
            let with = [amounts[0] + COMMAND, amounts[1].saturating_add(*bytes)];
            if amounts[0] > 0 && (with[0] > most[0] || with[1] > most[1]) {
                break;
            }
            amounts = with;
        }
        // The command before it was due at that time, and only the turn was late. So no unit is lost.
        let since_ns = self.last_due_ns.clamp(now_ns.saturating_sub(LATE_MAX_NS), now_ns);
        let claim = views.claim(self.class, amounts, since_ns);
        self.first = Some((claim, views.due_ns(self.class, &claim, now_ns)));
    }

    /// Takes the first waiting command if it is due.
    pub(super) fn take_due(&mut self, views: &Views, now_ns: u64) -> Option<Waiting> {
        let (mut claim, due_ns) = self.first.filter(|(_, due_ns)| *due_ns <= now_ns)?;
        let waiting = self.waiting.pop_front()?;
        views.member.waiting.fetch_sub(1, Ordering::Relaxed);
        let amounts = [COMMAND, waiting.bytes];
        views.charge(self.class, amounts, now_ns);
        claim.pass_first(amounts);
        self.last_due_ns = due_ns;
        if claim.amounts[0] > 0 {
            self.first = Some((claim, views.due_ns(self.class, &claim, now_ns)));
            return Some(waiting);
        }
        self.first = None;
        views.ahead().note_late(now_ns - due_ns, now_ns);
        self.claim_first(views, now_ns);
        Some(waiting)
    }

    /// Gives back everything that is claimed and unused.
    pub(super) fn give_back(&mut self, views: &Views) {
        let credit = std::mem::take(&mut self.credit);
        let class = self.class;
        let of = |kind: usize| if views.is_limited(class, kind) { credit[kind] } else { 0 };
        views.unclaim(class, [of(0), of(1)]);
        if let Some((claim, _)) = self.first.take() {
            views.unclaim(class, claim.amounts);
        }
    }

    /// Gives credit back that was not used in time.
    pub(super) fn lapse(&mut self, views: &Views, now_ns: u64) {
        if self.waiting.is_empty() && self.lapse_ns <= now_ns {
            self.give_back(views);
            self.lapse_ns = u64::MAX;
        }
    }

    /// Removes waiting commands for which `stays` returns false.
    pub(super) fn retain(&mut self, views: &Views, now_ns: u64, mut stays: impl FnMut(&Waiting) -> bool) {
        let (before, mut number) = (self.waiting.len(), 0);
        let mut first_stays = true;
        self.waiting.retain(|waiting| {
            let stays = stays(waiting);
            first_stays &= stays || number > 0;
            number += 1;
            stays
        });
        let removed = (before - self.waiting.len()) as u64;
        views.member.waiting.fetch_sub(removed, Ordering::Relaxed);
        if !first_stays {
            self.give_back(views);
            self.claim_first(views, now_ns);
        }
    }

    /// Takes all waiting commands.
    pub(super) fn drain(&mut self, views: &Views) -> impl Iterator<Item = Waiting> {
        views.member.waiting.fetch_sub(self.waiting.len() as u64, Ordering::Relaxed);
        self.waiting.drain(..)
    }
}
