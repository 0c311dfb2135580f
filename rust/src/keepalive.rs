//! Pings the other side of a silent connection, and notices when no answer comes.
//!
//! Both sides keep their connections alive by these rules. The driver of a connection asks at each pass.

use h2::{Ping, PingPong};
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::{Duration, Instant};
use tokio::time::{Sleep, sleep_until};

/// Pings the other side of a connection that is silent.
pub struct Keepalive {
    interval: Duration,
    timeout: Duration,
    ping: PingPong,
    asked: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
    is_set: bool,
}

impl Keepalive {
    pub fn new(interval: Duration, timeout: Duration, ping: PingPong) -> Keepalive {
        let alarm = Box::pin(sleep_until((Instant::now() + interval).into()));
        Keepalive { interval, timeout, ping, asked: None, alarm, is_set: false }
    }

    /// Sends a ping if one is due; true if the previous one was not answered in time. Any bytes
    /// that arrive count as an answer.
    pub fn poll(&mut self, cx: &mut Context<'_>, last_read: Instant) -> bool {
        // Polling a timer costs more than asking whether it has gone off.
        while !self.is_set || self.alarm.is_elapsed() {
            if self.alarm.as_mut().poll(cx).is_pending() {
                self.is_set = true;
                return false;
            }
            self.is_set = false;
            let now = Instant::now();
            let next = match self.asked.take() {
                Some(asked) if last_read < asked => return true,
                _ if last_read + self.interval > now => last_read + self.interval,
                _ => {
                    // Take the answer to the previous ping: h2 sends no other ping before that.
                    let _ = self.ping.poll_pong(cx);
                    let _ = self.ping.send_ping(Ping::opaque());
                    self.asked = Some(now);
                    now + self.timeout
                }
            };
            self.alarm.as_mut().reset(next.into());
        }
        false
    }
}
