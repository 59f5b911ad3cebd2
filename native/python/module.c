/* The module _shmring: its types, and the calls that need no ring. */
#include "handle.h"

/* --- calls ------------------------------------------------------------------------- */

static PyObject *make_ring(PyObject *module, PyObject *args, PyObject *keywords)
{
	static char *names[] = {"path",           "label",     "slots", "participants", "single_producer",
				"checksum",       "prefault",  "clock", "mode",         "schema",
				"first_sequence", "temporary", NULL};
	struct state *state = PyModule_GetState(module);
	/* CHANGE: edit this for a new option of a ring */
	struct shmring_options options = {0};
	unsigned long long slots;
	unsigned long long first;
	int status;
	PyObject *path = NULL;
	PyObject *label;
	Py_buffer schema;
	shmring *core;

	if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&UKIO&O&O&bIz*KO&", names, PyUnicode_FSConverter, &path,
					 &label, &slots, &options.participants, parse_flag,
					 &options.single_producer, parse_flag, &options.checksum, parse_flag,
					 &options.prefault, &options.clock, &options.mode, &schema, &first,
					 parse_flag, &options.temporary))
		return NULL;
	options.slots = slots;
	options.schema = schema.buf;
	options.schema_bytes = (size_t)schema.len;
	options.first_sequence = first;
	Py_BEGIN_ALLOW_THREADS status = shmring_create(PyBytes_AsString(path), &options, &core);
	Py_END_ALLOW_THREADS Py_DECREF(path);
	PyBuffer_Release(&schema);
	return status ? raise_error(state, status) : ring_wrap(state, label, core);
}

static PyObject *path_of(PyObject *module, PyObject *args)
{
	char path[SHMRING_PATH_BYTES];
	const char *name;
	int status;

	if (!PyArg_ParseTuple(args, "s", &name))
		return NULL;
	status = shmring_path_of(name, path, sizeof path);
	return status ? raise_error(PyModule_GetState(module), status) : PyUnicode_FromString(path);
}

static PyObject *attach(PyObject *module, PyObject *args, PyObject *keywords)
{
	static char *names[] = {"path", "label", "flags", NULL};
	struct state *state = PyModule_GetState(module);
	PyObject *path = NULL;
	PyObject *label;
	unsigned flags = 0;
	shmring *core;
	int status;

	if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&U|I", names, PyUnicode_FSConverter, &path, &label,
					 &flags))
		return NULL;
	Py_BEGIN_ALLOW_THREADS status = shmring_attach(PyBytes_AsString(path), flags, &core);
	Py_END_ALLOW_THREADS Py_DECREF(path);
	return status ? raise_error(state, status) : ring_wrap(state, label, core);
}

/* A Python callable that removes a ring's name while the core holds its locks. */
struct removal {
	PyObject *call;
	PyThreadState *thread;
};

static int remove_name(const char *Py_UNUSED(path), void *context)
{
	struct removal *removal = context;
	PyObject *result;

	PyEval_RestoreThread(removal->thread);
	result = PyObject_CallNoArgs(removal->call);
	Py_XDECREF(result);
	removal->thread = PyEval_SaveThread();
	return result ? SHMRING_OK : SHMRING_E_SYSTEM;
}

static PyObject *unlink_ring(PyObject *module, PyObject *args)
{
	struct removal removal = {0};
	PyObject *path = NULL;
	Py_buffer uuid;
	int status;

	if (!PyArg_ParseTuple(args, "O&z*O", PyUnicode_FSConverter, &path, &uuid, &removal.call))
		return NULL;
	if (uuid.buf && uuid.len != 16) {
		Py_DECREF(path);
		PyBuffer_Release(&uuid);
		return PyErr_Format(PyExc_ValueError, "a uuid has 16 bytes, not %zd", uuid.len);
	}
	removal.thread = PyEval_SaveThread();
	status = shmring_unlink(PyBytes_AsString(path), uuid.buf, Py_IsNone(removal.call) ? NULL : remove_name,
				&removal);
	PyEval_RestoreThread(removal.thread);
	Py_DECREF(path);
	PyBuffer_Release(&uuid);
	if (PyErr_Occurred())
		return NULL;
	if (status)
		return raise_error(PyModule_GetState(module), status);
	Py_RETURN_NONE;
}

static PyObject *ask_about(PyObject *module, PyObject *path, int (*ask)(const char *))
{
	PyObject *bytes = NULL;
	int answer;

	if (!PyUnicode_FSConverter(path, &bytes))
		return NULL;
	Py_BEGIN_ALLOW_THREADS answer = ask(PyBytes_AsString(bytes));
	Py_END_ALLOW_THREADS Py_DECREF(bytes);
	return answer < 0 ? raise_error(PyModule_GetState(module), answer) : PyBool_FromLong(answer);
}

static PyObject *reap_path(PyObject *module, PyObject *path)
{
	return ask_about(module, path, shmring_reap);
}

static PyObject *reapable(PyObject *module, PyObject *path)
{
	return ask_about(module, path, shmring_reapable);
}

static PyObject *crc32c(PyObject *Py_UNUSED(module), PyObject *args)
{
	unsigned crc = 0;
	Py_buffer data;

	if (!PyArg_ParseTuple(args, "y*|I", &data, &crc))
		return NULL;
	if (data.len < GIL_FREE_BYTES)
		crc = shmring_crc32c(crc, data.buf, (size_t)data.len);
	else {
		Py_BEGIN_ALLOW_THREADS crc = shmring_crc32c(crc, data.buf, (size_t)data.len);
		Py_END_ALLOW_THREADS
	}
	PyBuffer_Release(&data);
	return PyLong_FromUnsignedLong(crc);
}

static PyObject *slots_for(PyObject *Py_UNUSED(module), PyObject *args)
{
	unsigned long long nbytes;
	int align = 0;

	if (!PyArg_ParseTuple(args, "K|p", &nbytes, &align))
		return NULL;
	return PyLong_FromUnsignedLongLong(shmring_slots_for(nbytes, align));
}

/* Functions of the module, described where they are defined, or in shmring.h; _shmring.pyi has their types. */
static PyMethodDef functions[] = {
    {"path_of", path_of, METH_VARARGS, NULL},
    {"make", FASTCALL(make_ring), METH_VARARGS | METH_KEYWORDS, NULL},
    {"attach", FASTCALL(attach), METH_VARARGS | METH_KEYWORDS, NULL},
    {"unlink", unlink_ring, METH_VARARGS, NULL},
    {"reap", reap_path, METH_O, NULL},
    {"reapable", reapable, METH_O, NULL},
    {"crc32c", crc32c, METH_VARARGS, NULL},
    {"slots_for", slots_for, METH_VARARGS, NULL},
    {"arrow_layout", arrow_layout, METH_O, NULL},
    {"push_batch", FASTCALL(push_batch), METH_FASTCALL, NULL},
    {"is_released", lease_is_released, METH_O, NULL},
    {"is_used", lease_is_used, METH_O, NULL},
    {"own", lease_own, METH_O, NULL},
    {"map_batch", FASTCALL(map_batch), METH_FASTCALL, NULL},
    {"same_columns", FASTCALL(same_columns), METH_FASTCALL, NULL},
    {"wait_any", FASTCALL(wait_for_any), METH_FASTCALL, NULL},
    {"count_synced", count_synced, METH_VARARGS, NULL},
    {"take_now", FASTCALL(consumer_take_now), METH_FASTCALL, NULL},
    {"check_ends", FASTCALL(consumer_check_ends), METH_FASTCALL, NULL},
    {"set_aside", consumer_set_aside, METH_VARARGS, NULL},
    {"ends_of", consumer_ends_of, METH_O, NULL},
    {"push_now", FASTCALL(producer_push_now), METH_FASTCALL, NULL},
    {"decline", decline, METH_O, NULL},
    {"give_up", FASTCALL(give_up), METH_FASTCALL, NULL},
    {"should_try", should_try, METH_O, NULL},
    {"has_tried", FASTCALL(has_tried), METH_FASTCALL, NULL},
    {"pack", pack_items, METH_O, NULL},
    {"extents_of", extents_of, METH_VARARGS, NULL},
    {"runs_of", runs_of, METH_VARARGS, NULL},
    {"unpack", unpack_items, METH_VARARGS, NULL},
    {"unpack_one", FASTCALL(unpack_item), METH_FASTCALL, NULL},
    {"stack_nodes", stack_nodes, METH_VARARGS, NULL},
    {"stack_walk", stack_walk, METH_VARARGS, NULL},
    {0},
};

/* --- the module ---------------------------------------------------------------------- */

static const struct {
	PyType_Spec *spec;
	size_t offset;
	const char *name;
} types[] = {
    {&ring_spec, offsetof(struct state, ring), "Ring"},
    {&producer_spec, offsetof(struct state, producer), "Producer"},
    {&claim_spec, offsetof(struct state, claim), "Claim"},
    {&consumer_spec, offsetof(struct state, consumer), "Consumer"},
    {&consumer_iterator_spec, offsetof(struct state, consumer_iterator), "ConsumerIterator"},
    {&lease_spec, offsetof(struct state, lease), "Lease"},
    {&batch_spec, offsetof(struct state, batch), "Batch"},
    {&batch_iterator_spec, offsetof(struct state, batch_iterator), "BatchIterator"},
    {&view_spec, offsetof(struct state, view), "View"},
    {&arrow_layout_spec, offsetof(struct state, arrow_layout), "ArrowLayout"},
    {&bell_spec, offsetof(struct state, bell), "Bell"},
};

#define CORE(name) {#name, SHMRING_##name}

static const struct {
	const char *name;
	long value;
} constants[] = {
    CORE(SLOT_BYTES),         CORE(SLOT_FILE_BYTES),  CORE(MAX_PARTICIPANTS),     CORE(READ_ONLY),
    CORE(FOREIGN_OWNER),      CORE(FOREIGN_COPY),     CORE(UNAVAILABLE),          CORE(CONTENDED),
    CORE(KIND_END),           CORE(KIND_ARROW_BATCH), CORE(KIND_ARROW_STREAM),    CORE(LATEST),
    CORE(EARLIEST),           CORE(AT_SEQUENCE),      CORE(CLOCK_COARSE),         CORE(CLOCK_PRECISE),
    CORE(CLOCK_OFF),          CORE(WAIT_FUTEX),       {"FULL_BLOCK", FULL_BLOCK}, {"FULL_RAISE", FULL_RAISE},
    {"FULL_DROP", FULL_DROP},
};

static int intern_names(struct names *names)
{
	names->timeout = PyUnicode_InternFromString("timeout");
	names->kind = PyUnicode_InternFromString("kind");
	names->durable = PyUnicode_InternFromString("durable");
	names->align = PyUnicode_InternFromString("align");
	names->nbytes = PyUnicode_InternFromString("nbytes");
	names->max_messages = PyUnicode_InternFromString("max_messages");
	names->export_to_c = PyUnicode_InternFromString("_export_to_c");
	return PyErr_Occurred() ? -1 : 0;
}

/* WAITS: the number of each wait strategy, by its name. */
static int add_waits(PyObject *module)
{
	PyObject *waits = PyDict_New();
	int status = waits ? 0 : -1;

	for (uint8_t i = 0; i < SHMRING_WAIT_STRATEGIES && !status; i++) {
		PyObject *number = PyLong_FromLong(i);

		status = number ? PyDict_SetItemString(waits, shmring_describe_wait(i)->name, number) : -1;
		Py_XDECREF(number);
	}
	if (!status)
		status = PyModule_AddObjectRef(module, "WAITS", waits);
	Py_XDECREF(waits);
	return status;
}

static int module_exec(PyObject *module)
{
	struct state *state = PyModule_GetState(module);

	if (errors_load(state) || intern_names(&state->names) || !mapped_prepare())
		return -1;
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		PyObject *type = PyType_FromModuleAndSpec(module, types[i].spec, NULL);

		if (!type)
			return -1;
		*(PyTypeObject **)((char *)state + types[i].offset) = (PyTypeObject *)type;
		if (PyModule_AddObjectRef(module, types[i].name, type))
			return -1;
	}
	if (add_waits(module) || PyModule_AddStringConstant(module, "JOURNAL_BRANCH", JOURNAL_BRANCH) ||
	    PyModule_AddStringConstant(module, "VERSION", SHMRING_VERSION))
		return -1;
	for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
		if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value))
			return -1;
	return 0;
}

/* Visits every reference of the state, which consists of references only. */
static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
	PyObject **references = PyModule_GetState(module);

	for (size_t i = 0; references && i < sizeof(struct state) / sizeof *references; i++)
		Py_VISIT(references[i]);
	return 0;
}

static int module_clear(PyObject *module)
{
	PyObject **references = PyModule_GetState(module);

	for (size_t i = 0; references && i < sizeof(struct state) / sizeof *references; i++)
		Py_CLEAR(references[i]);
	return 0;
}

static void module_free(void *module)
{
	module_clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_shmring",
    .m_doc = "The core of shmring for Python; shmring.ring is the interface to use.",
    .m_size = sizeof(struct state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__shmring(void)
{
	return PyModuleDef_Init(&definition);
}
