# Does what an agent does between the answers of its model: it writes, reads, computes and
# waits. Its files are outside the workspace: only with one are they copied while it runs.
mkdir -p /opt/w
i=0
while [ $i -lt 60 ]; do
	i=$((i+1))
	d=/opt/w/$((i%10))
	mkdir -p $d
	for f in 1 2 3 4 5; do head -c 20000 /dev/zero | tr '\0' x >$d/$i.$f; done
	cat $d/* >/dev/null
	awk 'BEGIN { for (i = 0; i < 600000; i++) s += i }'
	sleep 0.2
done
