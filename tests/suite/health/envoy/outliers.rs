//! Passive health beside Envoy's outlier detection, replayed from recordings: what agrees, and
//! where we differ on purpose.

use serde_json::json;

use super::timeline::{Call, Row, Timeline, replayed, replayed_under, row, rows, share};

/// Returns what we make of a row, and what Envoy did.
async fn sides(row: &Row) -> [Timeline; 2] {
    [replayed(row).await, Timeline::recorded(row)]
}

/// Returns by how many calls the busiest host is ahead of the idlest.
fn spread(row: &Row, calls: &[Call]) -> usize {
    let shares = || (0..row.hosts()).map(|host| share(calls, host));
    shares().max().unwrap() - shares().min().unwrap()
}

/// Returns how long ejections lasted, those that ended.
fn periods(side: &Timeline) -> Vec<u64> {
    side.ejections.iter().filter_map(|out| out.lasted).collect()
}

/// Asserts that Envoy's periods are these, each up to the next tick of its interval.
fn assert_on_ticks(row: &Row, periods: &[u64], least: &[u64]) {
    assert_eq!(periods.len(), least.len());
    for (period, least) in periods.iter().zip(least) {
        assert!(
            (*least..=least + row.time("interval")).contains(period),
            "{period} {least}"
        );
    }
}

// ===== what agrees =====

#[tokio::test(start_paused = true)]
async fn every_call_agrees_up_to_the_first_ejection() {
    for row in rows() {
        let [ours, envoys] = sides(&row).await;
        let firsts = || {
            [&ours, &envoys]
                .into_iter()
                .filter_map(|side| side.ejections.first())
        };
        let end = firsts()
            .map(|first| first.from + 1)
            .min()
            .unwrap_or(ours.calls.len());
        assert_eq!(ours.calls[..end], envoys.calls[..end], "{}", row.name());
        for first in firsts() {
            assert_eq!(first.from, end - 1, "{}", row.name());
            assert_eq!(
                ours.failures(first.host, first.from),
                row.threshold(),
                "{}",
                row.name()
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_success_between_clears_the_count_and_what_is_no_failure_never_counts() {
    for name in ["success_resets_count", "gateway_failure_500_ignored"] {
        let [ours, envoys] = sides(&row(name)).await;
        assert!(
            ours.ejections.is_empty() && envoys.ejections.is_empty(),
            "{name}"
        );
        assert_eq!(ours.calls, envoys.calls, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_ejected_get_no_call_before_their_period_is_over() {
    // In panic they do, and where Envoy's balancer does not know yet.
    for row in rows().into_iter().filter(|row| !row.has_panic()) {
        let [ours, envoys] = sides(&row).await;
        let envoys = Some(envoys).filter(|_| !row.is_late());
        for side in [Some(ours), envoys].into_iter().flatten() {
            for out in &side.ejections {
                assert_eq!(
                    share(side.during(out), out.host),
                    0,
                    "{} {out:?}",
                    row.name()
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_holds_at_every_moment_and_is_reached_where_all_fail() {
    for row in rows() {
        let most = |side: Timeline| (0..side.calls.len()).map(|call| side.out_after(call)).max();
        let most = sides(&row).await.map(|side| most(side).unwrap());
        // One may always be out with us: see `differs_one_may_always_be_ejected`.
        let limits = [row.limit().max(1), row.limit()];
        assert!(
            most[0] <= limits[0] && most[1] <= limits[1],
            "{}: {most:?}",
            row.name()
        );
        assert!(
            most == limits || !row.name().starts_with("max_percent"),
            "{}",
            row.name()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn with_all_out_and_no_panic_calls_fail_at_once() {
    for side in sides(&row("max_percent_100_of_4")).await {
        let causes = side.ejections.iter().map(|out| out.from);
        assert_eq!(causes.collect::<Vec<_>>(), [33, 34, 35, 36]);
        let back = side.ejections[0].to.unwrap();
        assert!(
            side.calls[37..back]
                .iter()
                .all(|call| call.host.is_none() && !call.good)
        );
        assert!(
            side.calls[back..]
                .iter()
                .all(|call| call.host.is_some() && call.good)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn in_panic_all_are_used_alike_and_failures_eject_nobody() {
    let row = row("panic_50");
    for side in sides(&row).await {
        let (began, back) = (side.ejections[2].from + 1, side.ejections[0].to.unwrap());
        assert!(back - began > 90 && spread(&row, &side.calls[began..back]) <= 1);
        assert!((began..back).all(|call| side.out_after(call) == 3));
        assert!(side.ejections[3..].iter().all(|out| out.from >= back));
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_well_again_has_its_full_share() {
    for name in [
        "eject_and_recover",
        "refused_counts_as_5xx",
        "refused_split",
        "gateway_failure",
    ] {
        let row = row(name);
        for side in sides(&row).await {
            let [out] = &side.ejections[..] else {
                panic!("{name}: {:?}", side.ejections)
            };
            let after_trial = &side.calls[out.to.unwrap() + 1..];
            assert!(spread(&row, after_trial) <= 1, "{name}");
            assert!(after_trial.iter().all(|call| call.good), "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn periods_have_a_cap() {
    let row = row("growth_capped");
    let [ours, envoys] = sides(&row).await;
    assert_eq!(periods(&ours), [1000, 2000, 2000, 2000, 2000, 2000]);
    assert_on_ticks(&row, &periods(&envoys), &[1000, 2000, 2000, 2000, 2000]);
}

// ===== where we differ on purpose =====

/// Envoy puts a host back into full rotation, where it fails as often as at first. We try it with
/// one call, so that a host that stays bad costs one error a period.
#[tokio::test(start_paused = true)]
async fn differs_a_host_that_stays_bad_fails_one_call_a_period() {
    for name in [
        "still_bad_ejection_grows",
        "growth_capped",
        "consecutive_default_5",
    ] {
        let row = row(name);
        for (side, cost) in sides(&row).await.into_iter().zip([1, row.threshold()]) {
            assert!(side.ejections.len() > 1, "{name}");
            for pair in side.ejections.windows(2) {
                let between = &side.calls[pair[0].to.unwrap()..=pair[1].from];
                assert_eq!(share(between, 0), cost, "{name}");
            }
        }
    }
}

/// Envoy's n-th period is n times the base and ends with a tick. Ours doubles, so that who stays
/// bad is tried ever more rarely; it ends on time, because nothing here ticks.
#[tokio::test(start_paused = true)]
async fn differs_periods_multiply_and_end_on_time() {
    let row = row("still_bad_ejection_grows");
    let [ours, envoys] = sides(&row).await;
    assert_eq!(periods(&ours), [1000, 2000, 4000, 8000]);
    assert_on_ticks(&row, &periods(&envoys), &[1000, 2000, 3000, 4000, 5000]);
}

/// The price of that: who is well again is not noticed before its period is over. Envoy had it
/// back after 3.6 of its 6.1 good seconds; we met it only when it was bad again.
#[tokio::test(start_paused = true)]
async fn differs_a_long_period_may_outlast_the_trouble() {
    let [ours, envoys] = sides(&row("multiplier_decays")).await.map(|side| {
        // All is well from 8.9 s to 15 s.
        let good = &side.calls[445..750];
        share(good, 0)
    });
    assert_eq!((ours, envoys), (0, 31));
}

/// Envoy forgets one ejection with each tick that finds the host in service: here all four in
/// 2.7 s. We forget a period once the host has served for as long, so that a host that flaps
/// does not pass for well. Here 5.4 s of service pay for the last two, 2.9 s and 2.2 s.
#[tokio::test(start_paused = true)]
async fn differs_periods_are_forgotten_by_serving_as_long() {
    let row = row("multiplier_decays");
    // Slow growth, or there would be no trial in the good time.
    let ours = replayed_under(&row, row.health().growth(1.3)).await;
    assert_eq!(
        periods(&ours)[..6],
        [1000, 1300, 1700, 2200, 2860, 2200],
        "to the next call"
    );
    let envoys = periods(&Timeline::recorded(&row));
    assert_on_ticks(&row, &envoys, &[1000, 2000, 3000, 4000, 1000, 2000]);
}

/// A tenth of four is none. Envoy then ejects nobody unless it is told to; we eject one, or the
/// setting would switch health off wherever a set is small.
#[tokio::test(start_paused = true)]
async fn differs_one_may_always_be_ejected() {
    let ejects = |side: Timeline| !side.ejections.is_empty();
    assert_eq!(
        sides(&row("max_percent_10_of_4")).await.map(ejects),
        [true, false]
    );
    assert_eq!(
        sides(&row("max_percent_10_of_4_always_one"))
            .await
            .map(ejects),
        [true, true]
    );
}

/// Under a limit, Envoy returns a bad host and may eject another in its place. With us the trial
/// finds it bad, so it keeps the place: who is known to be bad stays out.
#[tokio::test(start_paused = true)]
async fn differs_a_host_that_stays_bad_keeps_its_place() {
    for name in ["max_percent_10_of_4_always_one", "max_percent_30_of_4"] {
        let out = sides(&row(name)).await.map(|side| side.ejections);
        let [ours, envoys] = out.map(|out| [out[0].host, out[1].host]);
        assert!(
            ours[0] == ours[1] && envoys[0] != envoys[1],
            "{name}: {ours:?} {envoys:?}"
        );
    }
}

/// When the limit forbids an ejection, Envoy starts to count anew, and a host that has failed
/// for long may miss the place that comes free. We keep the count: its next failure ejects it.
#[tokio::test(start_paused = true)]
async fn differs_a_forbidden_ejection_is_not_forgotten() {
    let row = row("max_percent_50_of_4");
    let envoys = Timeline::recorded(&row);
    let failure = Call {
        host: Some(3),
        good: false,
    };
    let missed: Vec<_> = (151..157)
        .filter(|&call| envoys.calls[call] == failure)
        .collect();
    for &call in &missed {
        assert!(envoys.out_after(call) < row.limit() && envoys.failures(3, call) > 60);
    }
    assert_eq!(
        (missed.len(), envoys.ejections[3].host),
        (2, 0),
        "another was faster"
    );
    // With us a place comes free if a host is well in time for its trial.
    let ours = replayed(&row.with(json!([2600, "status", 1, 200]))).await;
    let [.., trial, out] = &ours.ejections[..] else {
        unreachable!()
    };
    assert!(
        ours.calls[trial.from + 1..out.from]
            .iter()
            .all(|call| call.good)
    );
    assert_eq!(
        (out.host, ours.failures(out.host, out.from)),
        (3, 17 * 3 + 1)
    );
}

/// Envoy gathers changes for a second by default, in which the ejected may get calls. Our gates
/// close with the failure that ejects.
#[tokio::test(start_paused = true)]
async fn differs_an_ejection_is_never_late() {
    for name in [
        "still_bad_ejection_grows_merge_1s",
        "max_percent_50_of_4_merge_1s",
    ] {
        let [ours, envoys] = sides(&row(name)).await.map(|side| {
            let late = side
                .ejections
                .iter()
                .map(|out| share(side.during(out), out.host));
            late.collect::<Vec<_>>()
        });
        assert!(ours.iter().all(|&late| late == 0), "{name}");
        // The first change after a while is passed on at once.
        assert!(
            envoys[0] == 0 && envoys[1..].iter().all(|&late| late > 10),
            "{name}"
        );
    }
}

/// In panic Envoy's hosts keep to their periods, and all are used to the end. With us a success
/// brings its host back at once. When enough are back panic is over, and the others wait for
/// their trials.
#[tokio::test(start_paused = true)]
async fn differs_in_panic_a_success_brings_back() {
    let row = row("panic_50");
    let [ours, envoys] = sides(&row).await;
    // All is well from 3.5 s on, and the next call goes to one of the three.
    assert_eq!([174, 175, 299].map(|call| ours.out_after(call)), [3, 2, 2]);
    assert_eq!(
        [174, 175, 299].map(|call| envoys.out_after(call)),
        [3, 3, 3]
    );
    let shares = |side: &Timeline| [0, 1, 2, 3].map(|host| share(&side.calls[175..], host));
    assert_eq!(
        (shares(&ours), spread(&row, &envoys.calls[175..])),
        ([0, 63, 0, 62], 1)
    );
}

// ===== what clients see =====

/// The exception is panic that Envoy's balancer learned of a second late, twice. Until then it
/// kept one or two bad hosts out, where panic spreads the calls over all three of them.
#[tokio::test(start_paused = true)]
async fn clients_see_no_more_errors_but_where_panic_came_late() {
    let (rows, mut unequal) = (rows(), Vec::new());
    for row in &rows {
        let [ours, envoys] = sides(row).await.map(|side| side.errors());
        if ours != envoys {
            unequal.push((row.name(), ours, envoys));
        }
    }
    let (late, fewer) = unequal.split_last().unwrap();
    assert_eq!(*late, ("panic_50_merge_1s", 113, 100));
    let envoys = Timeline::recorded(&row(late.0));
    let kept_out = (
        share(&envoys.calls[38..88], 0),
        share(&envoys.calls[150..175], 2),
    );
    assert_eq!(kept_out, (0, 0));
    let expected = [
        ("still_bad_ejection_grows", 7, 18),
        ("growth_capped", 9, 18),
        ("multiplier_decays", 7, 21),
        ("consecutive_default_5", 6, 10),
        ("max_percent_100_of_4", 108, 125),
        ("panic_50", 112, 113),
        ("still_bad_ejection_grows_merge_1s", 7, 78),
    ];
    assert_eq!(fewer, expected);
}
