//! Passive health beside Envoy's outlier detection.

mod outliers;
mod rates;
mod timeline;
