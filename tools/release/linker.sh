#!/bin/sh
# Link the native edge against glibc 2.28, however new this machine's is: `make wheels`.
exec cargo-zigbuild zig cc -- -target "$(uname -m)-linux-gnu.2.28" "$@"
