//! How even the shares are, exactly, and that it is what the documentation says.

use counterpoise::policy::affinity::{KeyMap, Maglev, RingHash, Structure};

/// Endpoints of weight 1 in the n-th of many networks: `10.0.0.1:8080` and so on.
fn network(network: usize, n: usize) -> Vec<(String, u32)> {
    (0..n)
        .map(|i| (format!("10.{network}.{}.{}:8080", i / 250, i % 250 + 1), 1))
        .collect()
}

/// Returns the greatest share over the mean.
fn peak<S: Structure>(map: &KeyMap<S>) -> f64 {
    let shares = map.shares();
    shares
        .iter()
        .map(|(_, share)| share)
        .fold(0.0, |a: f64, &b| a.max(b))
        * shares.len() as f64
}

fn ring(points: u32, network_number: usize, n: usize) -> f64 {
    peak(
        &RingHash::on(())
            .points(points)
            .map(network(network_number, n)),
    )
}

/// The table in the documentation of `RingHash`: points, endpoints, the greatest share over
/// the mean, and the worst of many networks.
const TABLE: [(u32, usize, f64, f64); 8] = [
    (160, 2, 1.05, 1.15),
    (160, 10, 1.16, 1.26),
    (160, 100, 1.26, 1.33),
    (160, 500, 1.22, 1.34),
    (1_000, 2, 1.02, 1.07),
    (1_000, 10, 1.05, 1.09),
    (1_000, 100, 1.06, 1.12),
    (1_000, 500, 1.08, 1.12),
];

#[test]
fn rings_are_as_even_as_documented() {
    for (points, n, documented, worst) in TABLE {
        let peak = ring(points, 0, n);
        assert_eq!(
            (peak * 100.0).round() / 100.0,
            documented,
            "{points} points, {n} endpoints"
        );
        for network in 1..16.min(500_000 / (n * points as usize)) {
            let peak = ring(points, network, n);
            assert!(
                peak < worst + 0.005,
                "{points} points, {n} endpoints: {peak}"
            );
        }
    }
}

#[test]
fn rings_of_every_size_are_even() {
    for n in (2..60).chain((60..=500).step_by(55)) {
        let peak = ring(160, 0, n);
        assert!(peak < 1.3, "{n} endpoints: {peak}");
    }
}

#[test]
fn maglev_is_even_within_one_percent() {
    for n in (2..60).chain((60..=500).step_by(11)).chain([489]) {
        let shares = Maglev::on(()).map(network(0, n));
        for (name, share) in shares.shares() {
            let ratio = share * n as f64;
            assert!(
                (0.99..=1.01).contains(&ratio),
                "{n} endpoints: {name} {ratio}"
            );
        }
    }
}
