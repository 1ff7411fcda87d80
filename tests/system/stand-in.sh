#!/bin/sh
# A component of XCE, played by the reference component of the same name.
set -eu
name=${0##*/xce-}
shift # --foreground
: "${XCE_REF_STATE:=/var/lib/xce/$name}"
: "${XCE_REF_LEASE_S:=30}" # the shipped role files allow ten seconds for a stop within a lease
export XCE_REF_STATE XCE_REF_LEASE_S
exec xce-reference "$name" "$@"
