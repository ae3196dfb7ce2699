# The script that carboy runs on a host. Assignments of its variables precede it; the rest
# is constant. It needs POSIX sh, docker, flock, timeout and the coreutils. Variables are
# quoted everywhere except for lists of paths and ids, which contain no blanks and no
# wildcards.
set -uf
umask 077
LC_ALL=C
export LC_ALL
unset CDPATH ENV BASH_ENV
# Continue if the client disconnects.
trap '' HUP PIPE
dir=$HOME/.local/state/carboy/ship/v1/$project.$service
# Without a healthcheck Docker omits the key, and a plain template would fail.
health_of='{{$h := "none"}}{{range $k, $v := .State}}{{if eq $k "Health"}}{{if $v}}{{$h = $v.Status}}{{end}}{{end}}{{end}}{{$h}}'
up_flags='--no-build --no-deps --no-color'
# The format of a job's files. Another format is for another version of this script.
schema=carboy.dev/ship-job/v1

say() { printf '%s\n' "$*" 2>/dev/null || :; }
refuse() {
    say "@refused $*"
    exit 0
}
b64() { base64 -w 0; }
# file NAME PATH: sends a file to the client; sent counts the bytes.
sent=0
file() {
    [ -f "$2" ] || return 0
    text=$(head -c 2097152 <"$2" | b64)
    say "@file $1 $text"
    sent=$((sent + ${#text}))
}

# Find the compose plugin as Docker's client does: starting it through the client takes
# longer than most of its work. If the client is configured to search elsewhere, use the
# client.
plugin=
if ! grep -qs cliPluginsExtraDirs "$HOME/.docker/config.json"; then
    for p in "$HOME/.docker" /usr/local/lib/docker /usr/local/libexec/docker /usr/lib/docker /usr/libexec/docker; do
        p=$p/cli-plugins/docker-compose
        [ -f "$p" ] || continue
        [ ! -x "$p" ] || plugin=$p
        break
    done
fi
# dk LIMIT ARGS...: runs docker with a deadline and a clean environment. It starts the
# plugin as the client does. Other modules' services of the project are no orphans.
dk() {
    limit=$1
    shift
    if [ "$1" = compose ] && [ -n "$plugin" ]; then
        set -- DOCKER_CLI_PLUGIN_ORIGINAL_CLI_COMMAND=docker "$plugin" "$@"
    else
        set -- docker "$@"
    fi
    timeout -k 1 "$limit" env -i "HOME=$HOME" "PATH=$PATH" "DOCKER_HOST=$docker" COMPOSE_IGNORE_ORPHANS=true "$@"
}
# limited ARGS...: runs a program that may take long on a slow disk or connection.
limited() { timeout -k 1 "$t_other" "$@"; }
# compose HOW LIMIT ARGS...: runs compose with HOW: dk, or told, which only reports the
# command. Standard input is the compose file.
compose() {
    how=$1 limit=$2
    shift 2
    "$how" "$limit" compose --ansi never --progress plain -p "$project" --project-directory "$root" --env-file /dev/null -f - "$@"
}
# No argument needs quoting.
told() {
    shift
    step run "${plugin:-docker} $*"
}
# shown FILE ARGS...: runs compose and sends each line of its output at once, up to a bound.
# It sends complete lines only, because the client does not recognize half a secret. It does
# not wait for background processes of compose, which may keep the output open. It sets
# went to the reason of a failure.
shown() {
    input=$1
    shift
    went=failed
    compose told "$@"
    clean pipe lines
    mkfifo "$j/pipe" "$j/lines" && command exec 8<>"$j/pipe" || return 1
    sed -u 's/^/| /' <"$j/lines" 2>/dev/null 8<&- 9<&- &
    teller=$!
    # Copies each write at once, at most 256 KiB in all.
    { dd bs=512 count=512; exec cat >/dev/null; } <"$j/pipe" >"$j/lines" 2>/dev/null 8<&- 9<&- &
    reader=$!
    compose dk "$@" <"$input" >&8 2>&1 8<&-
    code=$?
    exec 8<&-
    { sleep 1; kill "$reader" "$teller"; } </dev/null >/dev/null 2>&1 9<&- &
    late=$!
    wait "$reader" "$teller" 2>/dev/null
    kill "$late" 2>/dev/null
    # The last line may lack a line break; our next output must start a line.
    echo 2>/dev/null || :
    rm -f "$j/pipe" "$j/lines"
    if [ "$code" = 124 ] || [ "$code" = 137 ]; then
        went="was ended at its deadline"
        step deadline "docker compose $went"
        quiet
    fi
    return "$code"
}
container_ids() {
    dk "$t_look" ps -aq --no-trunc --filter "label=com.docker.compose.project=$project" --filter "label=com.docker.compose.service=$service" --filter label=com.docker.compose.oneoff=False
}
# containers prints a line for each container of the service. If inspect fails because one
# was removed meanwhile, it tries again with the new list.
containers() {
    ids=$(container_ids) || return 1
    while [ -n "$ids" ]; do
        if c=$(dk "$t_look" inspect --format 'container {{.Id}} {{.Image}} {{with index .Config.Labels "com.docker.compose.config-hash"}}{{.}}{{else}}-{{end}} {{.State.Status}} '"$health_of"' {{.RestartCount}}' $ids); then
            printf '%s\n' "$c" | sort
            return
        fi
        listed=$ids
        ids=$(container_ids) && [ "$ids" != "$listed" ] || return 1
    done
}
# awake waits until Docker answers, at most as long as a service may take to be healthy: a
# daemon that restarts answers again.
awake() {
    clock
    looked=$now
    until container_ids >/dev/null 2>&1; do
        clock
        [ $((now - looked)) -lt "${health_within}00" ] || return 1
        sleep 0.2 2>/dev/null || sleep 1
    done
}
# listed prints what containers prints, also if Docker only answers after a while.
listed() { containers || { awake && containers; }; }
# runs prints since when the service runs, its image's name and the file that compose read.
runs() {
    ids=$(container_ids) && [ -n "$ids" ] || return 0
    dk "$t_look" inspect --format '{{.State.StartedAt}} {{.Config.Image}} {{with index .Config.Labels "com.docker.compose.project.config_files"}}{{.}}{{end}}' $ids 2>/dev/null | head -n 1 | head -c 1000
}
# image_id prints the id of an image, nothing if there is none; docker alone would print an
# empty line then.
image_id() { i=$(dk "$t_look" image inspect --format '{{.Id}}' "$1" 2>/dev/null) && printf '%s\n' "$i"; }

# into FILE changes to a file's directory below the root, and creates missing ones. After
# each step it compares the working directory with the expected one, so a directory that is
# replaced by a link meanwhile is not followed.
into() {
    cd -P "$root" && [ "$(env pwd -P)" = "$root" ] || return 1
    rest=$1 here=$root
    while [ "$rest" != "${rest#*/}" ]; do
        here=$here/${rest%%/*}
        [ -d "${here##*/}" ] || mkdir "${here##*/}" || return 1
        cd -P "./${here##*/}" && [ "$(env pwd -P)" = "$here" ] || return 1
        rest=${rest#*/}
    done
}

# paths refuses a root, a file or a bind whose path contains a link.
paths() {
    [ "$(readlink -f "$root")" = "$root" ] || refuse policy "remote_root $root is not there, or a link leads elsewhere: make the directory above it"
    if [ -d "$root" ]; then [ -z "$files" ] || [ -w "$root" ]; else [ -w "${root%/*}/" ]; fi || refuse failed "$(id -un) may not write $root: make it there, as a directory of that user"
    for p in $files; do set -- "$@" "$root/$p"; done
    for p in $binds; do set -- "$@" "$p"; done
    for p in "$@"; do
        [ "$(readlink -m "$p")" = "$p" ] || refuse policy "$p: a link leads elsewhere"
        [ ! -L "$p" ] || refuse policy "$p is a link"
    done
}

# scan finds the current job, an unfinished job, and the last number. Only the newest job
# can be unfinished, because no other is begun before it ends: an older one without a result
# is damaged, like one without a known schema, and neither is in the way of new ones.
scan() {
    current=- unfinished=- used=- last=100000 damaged=
    set +f
    for d in "$dir"/jobs/1?????-*; do
        [ -d "$d" ] || continue
        n=${d##*/}
        last=${n%%-*} damaged= unfinished=-
        if [ -f "$d/schema" ]; then
            kind=
            read -r kind rest <"$d/schema" || :
            case $kind in
            "$schema") ;;
            "${schema%/*}"/*) refuse newer "$d is $kind, and this is for $schema" ;;
            *) damaged=$d ;;
            esac
        fi
        outcome=
        if [ -f "$d/result" ]; then read -r outcome rest <"$d/result"; else unfinished=$n; fi
        [ "$outcome" != applied ] || current=$n
        [ "${n#*-}" != "$job" ] || used=$n
    done
    set -f
    [ -z "$damaged" ] || refuse newer "$damaged is damaged, and this is for $schema"
}

# observe prints the state of the service. The plan has the digest of this text. Both sides
# of the pipe query Docker at the same time.
observe() {
    say "carboy-observed 1"
    { containers || say failed; } | {
        i=$(image_id "$image") || i=-
        say "image $i"
        c=$(cat)
        [ "$c" = "${c%failed}" ] || exit 1
        [ -z "$c" ] || say "$c"
    } || return 1
    for f in $files; do
        if [ -f "$root/$f" ]; then
            s=$(timeout "$t_look" sha256sum "$root/$f") || return 1
            say "file ${s%% *} $f"
        elif [ -e "$root/$f" ]; then
            say "file other $f"
        else
            say "file - $f"
        fi
    done
    say "current $current"
}

# at sets time to seconds since 1970. Only the first call reads the wall clock; later calls
# add the elapsed monotonic time, so setting the clock has no effect.
booted=
at() {
    if read -r up rest 2>/dev/null </proc/uptime; then
        [ -n "$booted" ] || booted=$(($(date +%s) - ${up%.*}))
        time=$((booted + ${up%.*}))
    else
        time=$(date +%s)
    fi
}
step() {
    at
    printf '%s %s\n' "$time" "$*" 2>/dev/null >>"$j/steps"
    say "@step $*"
}
# clock sets now to hundredths of seconds of a monotonic clock, if there is one.
clock() {
    if read -r now rest 2>/dev/null </proc/uptime; then now=${now%.*}${now#*.}; else now=$(date +%s)00; fi
}
# clean NAMES...: removes files in this job's directory.
clean() {
    for n in "$@"; do [ ! -e "$j/$n" ] || rm -f "$j/$n"; done
}
# finish OUTCOME WHY: writes the result of the job, once. Its disk space was reserved before.
finish() {
    clean output pipe lines # still here when an apply was killed; output, of an older carboy, is not redacted
    at
    printf '%-255.255s\n' "$1 $time $2" 1<>"$j/result.tmp" && limited sync "$j/result.tmp" && mv "$j/result.tmp" "$j/result" && limited sync "$j" || refuse unrecorded "$1 $2"
    say "@result $1 $2"
    rm -rf "$j/f" # the commit has them
    prune
    exit 0
}
# prune removes old finished jobs. It keeps the newest, the current one, and those whose plan
# may still be valid, because they show that it was used. It removes a job in one step: half
# a job would look like an interrupted one.
prune() {
    set +f
    set -- "$dir"/jobs/1?????-*
    set -f
    [ $# -gt "$keep" ] || return 0
    scan
    at
    rm -rf "$dir/gone"
    while [ $# -gt "$keep" ]; do
        d=$1
        shift
        [ -f "$d/result" ] && [ "${d##*/}" != "$current" ] && read -r outcome ended rest <"$d/result" || continue
        case $ended in '' | 0* | *[!0-9]*) continue ;; esac
        [ $((time - ended)) -gt "$plan_life" ] || continue
        mv -T "$d" "$dir/gone" && rm -rf "$dir/gone" || return 0
    done
}

lock() {
    [ -d "$dir/jobs" ] || mkdir -p "$dir/jobs" || refuse failed "cannot make $dir"
    # Lock the directory itself, because people remove lock files.
    command exec 9<"$dir" || refuse failed "cannot open $dir"
    flock "$@" 9 || refuse locked "$(head -c 200 "$dir/owner" 2>/dev/null)"
    printf '%s, process %s\n' "$owner" $$ 2>/dev/null >"$dir/owner"
}

# put_files puts the approved files in place, each atomically. Equal files are not changed
# and keep their owner.
put_files() {
    i=0
    for f in $files; do
        same "$j/f/$i" "$root/$f" || put "$j/f/$i" "$f" || return 1
        i=$((i + 1))
    done
    in_place
}
in_place() {
    [ -z "$wanted" ] || (cd "$root" && printf '%s\n' "$wanted" | timeout "$t_other" sha256sum -c --status 2>/dev/null)
}
# same A B: compares the contents of two files, and whether they are executable.
same() {
    a=0 b=0
    [ ! -x "$1" ] || a=1
    [ ! -x "$2" ] || b=1
    [ -f "$2" ] && [ $a = $b ] && timeout "$t_look" cmp -s "$1" "$2"
}
# put FROM FILE [-p]: copies a file with its mode; with -p also with its owner, if permitted.
put() (
    umask 022
    into "$2" || exit 1
    tmp=./.carboy.tmp.$project.$service # another service may have the same root
    limited cp ${3:-} -T --remove-destination "$1" "$tmp" && limited sync "$tmp" && mv -T "$tmp" "./${2##*/}" && limited sync . && exit 0
    rm -f "$tmp"
    exit 1
)
# seen FILE: prints its mode and owner.
seen() { timeout "$t_look" stat -c '%a %u:%g %n' "$root/$1"; }
# restore_files restores the previous files. It does not touch unchanged ones, which may be
# mounted.
restore_files() {
    i=0
    for f in $files; do
        if [ -f "$j/prev/$i" ]; then
            [ -f "$root/$f" ] && grep -qxF "$(seen "$f")" "$j/seen" && same "$j/prev/$i" "$root/$f" || put "$j/prev/$i" "$f" -p || return 1
        elif [ -f "$root/$f" ]; then
            (into "$f" && rm -f "./${f##*/}" && limited sync .) || return 1
        fi
        i=$((i + 1))
    done
}

# one IMAGE HASH: checks that there is exactly one container, with this image and
# configuration (- for any), and sets id to its id, or reason.
one() {
    reason="docker does not answer"
    c=$(listed) || return 1
    reason="what runs is not what was approved"
    set -- "$1" "$2" $c
    [ $# = 9 ] || return 1
    id=$4
    { [ "$1" = - ] || [ "$1" = "$5" ]; } && { [ "$2" = - ] || [ "$2" = "$6" ]; }
}
# watch waits until the service is healthy, and has run long enough without a restart. A
# daemon that restarts meanwhile answers again, and the container begins anew with it.
watch() {
    clock
    looked=$now since= began= before= health=
    fresh=1
    ! grep -q "^container $id " "$j/observed" || fresh=0
    while :; do
        clock # before Docker is asked, which may take as long as it should run
        if s=$(dk "$t_look" inspect --format '{{.State.Status}} '"$health_of"' {{.RestartCount}} {{.State.StartedAt}}' "$id"); then
            set -- $s
            [ "$health" = "$2" ] || step health "$2"
            health=$2
            if [ -z "$began" ]; then
                began=$4 before=$3 since=$now
                [ $fresh = 0 ] || before=0
            fi
            reason="the container is $1"
            [ "$1" = running ] || return 1
            reason="the container restarts"
            [ "$3" = "$before" ] && [ "$4" = "$began" ] || return 1
            case $2 in
            healthy) [ $((now - since)) -lt "${stable_checked}00" ] || return 0 ;;
            unhealthy) reason="its healthcheck fails" && return 1 ;;
            none) [ $((now - since)) -lt "${stable}00" ] || return 0 ;;
            esac
            reason="not healthy in time"
        elif c=$(container_ids) && lacks "$id" "$c"; then
            reason="the container is gone"
            return 1
        else
            reason="docker does not answer"
            [ "$health" = unknown ] || step health unknown, "$reason"
            health=unknown began=
        fi
        [ $((now - looked)) -lt "${health_within}00" ] || return 1
        sleep 0.2 2>/dev/null || sleep 1
    done
}

# lacks ID IDS: checks that the container is not in a list.
lacks() {
    case $2 in *"$1"*) return 1 ;; esac
}

# evidence OF sends what the container wrote last and what its healthcheck said. Both may
# hold secrets, so they are not written to this disk; the client redacts and keeps them.
evidence() {
    say "@evidence $1"
    say "@health $(dk "$t_look" inspect --format '{{range $k, $v := .State}}{{if eq $k "Health"}}{{json $v}}{{end}}{{end}}' "$id" 2>/dev/null | head -c 1048576)"
    dk "$t_look" logs --tail 300 "$id" 2>&1 | tail -c 262144 | sed 's/^/@log /' 2>/dev/null
    echo 2>/dev/null || : # the last line may lack a line break
}
# unwell ends the job of a service that is not healthy.
unwell() {
    evidence new
    back rolled-back "$reason"
}

# unchanged: checks that the containers are the same as before, in the same state.
unchanged() {
    c=$(listed) || return 1
    [ "$(printf '%s\n' "$c" | cut -d' ' -f1-5)" = "$(grep '^container ' "$j/observed" | cut -d' ' -f1-5)" ]
}
# quiet waits until Docker has completed pending work. It continues to stop a container after
# its client has died, and shows the old state until then.
quiet() {
    set -- $(grep '^container ' "$j/observed") -
    [ "$1" = container ] || return 0
    grace=$(dk "$t_look" inspect --format '{{with .Config.StopTimeout}}{{.}}{{else}}10{{end}}' "$2" 2>/dev/null) || return 0
    { [ "$grace" -ge 0 ] && [ "$grace" -le "$t_other" ]; } 2>/dev/null || grace=$t_other
    clock
    looked=$now
    while [ $((now - looked)) -lt $((grace + 2))00 ] && [ "$(dk "$t_look" inspect --format '{{.State.Running}}' "$2" 2>/dev/null)" = true ]; do
        sleep 0.2 2>/dev/null || sleep 1
        clock
    done
}

# back OUTCOME WHY: restores the previous state and ends the job with OUTCOME.
back() {
    step back "$2"
    good=1
    awake || good=0
    restore_files || good=0
    case $prev in
    none)
        shown "$j/compose.yaml" "$t_other" rm -fs "$service" || good=0
        c=$(listed) && [ -z "$c" ] || good=0
        ;;
    known)
        f=$j/back.yaml
        [ "$(image_id "$prev_ref")" != "$prev_image" ] || f=$j/prev.yaml
        shown "$f" "$t_up" up -d $up_flags --pull never $force "$service" || good=0
        if one "$prev_image" -; then
            [ "$prev_ran" = 0 ] || watch || {
                evidence previous
                good=0
            }
        else
            good=0
        fi
        ;;
    *) good=0 ;;
    esac
    [ $good = 1 ] || finish rollback-failed "$2"
    finish "$1" "$2"
}
kept() {
    step kept "$1"
    restore_files || finish rollback-failed "$1; files could not be put back"
    finish failed "$1"
}

# carry_out applies the plan. The job is on disk.
carry_out() {
    step files
    put_files || kept "the files could not be written"
    step compose
    if [ "$action" = remove ]; then
        shown "$j/compose.yaml" "$t_other" rm -fs "$service" && c=$(listed) && [ -z "$c" ] || back failed "docker compose rm $went"
        finish applied removed
    fi
    if ! shown "$j/compose.yaml" "$t_up" up -d $up_flags --pull "$pull" $force "$service"; then
        ! unchanged || kept "docker compose up $went"
        back failed "docker compose up $went"
    fi
    one "$want_image" "$want_hash" || back failed "$reason"
    step watch
    watch || unwell
    finish applied healthy
}

# receive reads the files of a job, listed as "SIZE NAME", and checks their digests.
receive() {
    set -- "$1" $pieces
    to=$1
    shift
    umask 022
    while [ $# -gt 1 ]; do
        limited head -c "$1" >"$to/$2" || return 1
        shift 2
    done
    umask 077
    for p in $programs; do chmod 755 "$to/$p" || return 1; done
    (cd "$to" && printf '%s\n' "$sums" | limited sha256sum -c --status)
}

# expected prints the configuration hash of the received compose file.
expected() {
    [ "$action" = remove ] || [ "$action" = none ] || compose dk "$t_other" config --hash "$service" <"$new/compose.yaml" 2>/dev/null
}

apply() {
    lock -w 2 # somebody may look at this moment
    scan
    [ "$unfinished" = - ] || refuse unfinished "$unfinished"
    [ "$used" = - ] || refuse used "$used"
    [ "$last" -lt 199999 ] || refuse failed "there are too many jobs: move $dir away"
    new=$dir/new
    [ ! -e "$new" ] || rm -rf "$new"
    paths
    mkdir "$new" "$new/f" "$new/prev" || refuse failed "cannot make $new: is the disk full?"
    # Query Docker while receiving the job, and run compose on its file while syncing it.
    observe >"$new/observed" 9<&- &
    asks=$!
    receive "$new" || refuse failed "the host could not take what was sent: is its disk full, or the line too slow?"
    expected >"$dir/hash" 2>/dev/null 9<&- &
    reads=$!
    wait "$asks" || refuse docker "docker does not answer"
    s=$(sha256sum <"$new/observed")
    if [ "${s%% *}" != "$observed" ]; then
        file observed "$new/observed"
        refuse stale
    fi
    if [ "$action" = none ]; then
        rm -rf "$new"
        say "@result nothing"
        exit 0
    fi
    i=0
    for f in $files; do
        if [ -f "$root/$f" ]; then
            (into "$f" && limited cp -pPT "./${f##*/}" "$new/prev/$i") && [ ! -L "$new/prev/$i" ] && seen "$f" >>"$new/seen" || refuse failed "cannot keep $f: is the disk full?"
        fi
        i=$((i + 1))
    done
    printf '%s\n' "$schema" >"$new/schema" && printf '%-255.255s\n' pending >"$new/result.tmp" || refuse failed "no room for a record"
    set +f
    set -- "$new" "$new/f" "$new/prev"
    for p in "$new"/* "$new"/f/* "$new"/prev/*; do [ ! -f "$p" ] || set -- "$@" "$p"; done
    set -f
    limited sync "$@" || refuse failed "cannot record the job: is the disk full?"
    wait "$reads" || refuse failed "docker compose did not read the file"
    hash=
    read -r hash <"$dir/hash" || :
    if [ "$action" != remove ] && [ "${hash##* }" != "$want_hash" ]; then
        refuse compose-changed "$(dk "$t_look" compose version --short 2>/dev/null)"
    fi
    [ -d "$root" ] || mkdir -m 755 "$root" || refuse failed "cannot make $root: make it there"
    j=$dir/jobs/$((last + 1))-$job
    mv -T "$new" "$j" && limited sync "$dir/jobs" || refuse failed "cannot record the job"
    step applying
    carry_out
}

# recover completes or rolls back a job whose shell has died.
recover() {
    lock -w 2
    scan
    [ "$unfinished" != - ] && [ "${unfinished#*-}" = "$job" ] || refuse settled
    j=$dir/jobs/$unfinished
    # After a power failure Docker may still be starting; the job cannot be judged yet.
    c=$(containers) || refuse docker "docker does not answer"
    step recover
    if [ "$action" = remove ]; then
        [ -n "$c" ] || finish applied "removed, after an interruption"
        quiet
        ! unchanged || kept "interrupted before anything was changed"
        back failed interrupted
    fi
    if in_place && one "$want_image" "$want_hash"; then
        if [ -z "$force" ] && [ "$action" != recreate ] || ! unchanged; then
            watch || unwell
            finish applied "healthy, after an interruption"
        fi
    fi
    quiet
    ! unchanged || kept "interrupted before the service was changed"
    back failed interrupted
}

look() {
    if [ -d "$dir" ] && ! flock -sn 9 9<"$dir"; then say "@locked $(head -c 200 "$dir/owner" 2>/dev/null)"; fi
}

case $mode in
plan)
    input=$(head -c "$size" | b64)
    paths
    scan
    look
    # Run these in parallel; each prints one short line.
    say "@compose $(dk "$t_look" compose version --short 2>/dev/null | head -c 100)" &
    [ "$size" = 0 ] || {
        hash=$(printf %s "$input" | base64 -d | compose dk "$t_other" config --hash "$service" 2>&1) || refuse compose "$(printf %s "$hash" | head -c 2000 | tr '\n' ' ')"
        say "@hash ${hash##* }"
    } &
    [ -z "$tell" ] || say "@runs $(runs)" &
    text=$(observe) || text=
    wait
    [ -n "$text" ] || refuse docker "docker does not answer"
    say "@observed $(say "$text" | b64)"
    say "@unfinished $unfinished"
    if [ "$current" != - ]; then
        say "@current $current"
        file plan "$dir/jobs/$current/plan.json"
        file compose "$dir/jobs/$current/compose.yaml"
        file result "$dir/jobs/$current/result"
    fi
    ;;
apply) apply ;;
recover) recover ;;
await)
    # Wait until the lock is released, then send the job's result.
    [ ! -d "$dir" ] || flock -s -w "$health_within" 9 9<"$dir" || refuse locked "$(head -c 200 "$dir/owner" 2>/dev/null)"
    scan
    say "@unfinished $unfinished"
    say "@used $used"
    [ "$used" = - ] || file result "$dir/jobs/$used/result"
    ;;
history)
    # Newest first, up to a size that is sent quickly.
    scan
    look
    say "@unfinished $unfinished"
    say "@current $current"
    newest=
    set +f
    for d in "$dir"/jobs/1?????-*; do [ ! -d "$d" ] || newest="${d##*/} $newest"; done
    set -f
    for n in $newest; do
        [ "$most" -gt 0 ] && [ "$sent" -lt 8388608 ] || break
        most=$((most - 1))
        say "@job $n"
        for f in plan.json approvals.json reviews.json result steps; do file "$f" "$dir/jobs/$n/$f"; done
    done
    ;;
esac
